"""Shell cells: run in the kernel of a page, and shown as the page has them."""

from __future__ import annotations

import subprocess
from typing import Any

START, END = "from _site.shell import run_shell\nrun_shell(r'''", "''')"
"""Text before and after the commands of a cell, which make a Python cell of them."""


def make_cell_source(commands: str) -> str:
    """The Python that runs commands of the shell. Raises ValueError for what Python cannot quote."""
    if "'''" in commands:
        raise ValueError("a block of shell holds three quotes, which end the text of a cell")
    return f"{START}{commands}{END}"


def run_shell(commands: str) -> None:
    """Run commands, and print their output and errors in the order of writing. Raises `CalledProcessError`
    where one fails. (`%%bash` hands over line by line, and MyST-NB then drops blank lines.)"""
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", commands],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout, end="")
    done.check_returncode()


def show_commands(app: Any, tree: Any) -> None:
    """Show the commands of every shell cell of a page, highlighted as shell."""
    from docutils.nodes import Text, literal_block

    for block in tree.findall(literal_block):
        text = block.astext()
        if text.startswith(START):
            block.rawsource = text.removeprefix(START).removesuffix(END)
            block.children = [Text(block.rawsource)]
            block["language"] = "bash"


def setup(app: Any) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("doctree-read", show_commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
