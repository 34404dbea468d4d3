"""Read a Markdown page as a notebook: its blocks of Python and shell are cells, in order.

A block at the top level of the page whose language is `python` or `sh` is a cell. All else is text. A word
after the language is a reason not to execute the block: it needs a `gpu`, `root`, a `cluster`, or `torch`
where that is not installed; `ci` runs it as a step of its own; or it is a `sketch` with a part left out.
GitHub shows such a page like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from markdown_it import MarkdownIt
from mdit_py_plugins.colon_fence import colon_fence_plugin
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from .project_pages import OUTSIDE_LINK, rewrite_link
from .shell import make_cell_source

SKIP_REASONS = ("gpu", "root", "cluster", "torch", "ci", "sketch")
"""Why a block is not executed, as written behind its language."""
LANGUAGES = ("python", "sh")
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


@dataclass(frozen=True)
class Block:
    """A block of Python or shell on a page."""

    language: str
    source: str
    line: int
    """Line of its first fence in the page, from 1."""
    end: int
    """Line after its last fence, from 1."""
    skip_reason: str | None
    """One of `SKIP_REASONS`, or None where the block is executed."""


def find_blocks(text: str) -> list[Block]:
    """Find the blocks of Python and shell in a page. Raises ValueError for an unknown skip reason."""
    blocks = []
    for token in MarkdownIt().use(colon_fence_plugin).parse(text):
        words = token.info.split()
        if token.type != "fence" or token.level or not words or words[0] not in LANGUAGES:
            continue
        reason = words[1] if len(words) > 1 else None
        if reason is not None and reason not in SKIP_REASONS:
            raise ValueError(f"line {token.map[0] + 1}: {reason!r} is none of {', '.join(SKIP_REASONS)}")
        blocks.append(Block(words[0], token.content, token.map[0] + 1, token.map[1] + 1, reason))
    return blocks


def read_page(text: str) -> NotebookNode:
    """Read a page as a notebook for MyST-NB."""
    text = OUTSIDE_LINK.sub(rewrite_link, text)
    lines, cells, start = text.splitlines(keepends=True), [], 0
    for block in find_blocks(text):
        cells.append(new_markdown_cell("".join(lines[start : block.line - 1])))
        if is_skipped(block):
            # Shown as text: the language alone, so that it is highlighted.
            cells.append(new_markdown_cell(f"```{block.language}\n{block.source}```\n"))
        else:
            cells.append(_make_cell(block))
        start = block.end - 1
    cells.append(new_markdown_cell("".join(lines[start:])))
    cells = [c for c in cells if c.source.strip()]
    # A page without a cell needs no kernel, which takes seconds to start.
    mode = "force" if any(c.cell_type == "code" for c in cells) else "off"
    return new_notebook(cells=cells, metadata=KERNEL | {"mystnb": {"execution_mode": mode}})


def is_skipped(block: Block) -> bool:
    """Whether a block is not executed here."""
    if block.skip_reason == "torch":
        return find_spec("torch") is None
    return block.skip_reason is not None


def _make_cell(block: Block) -> NotebookNode:
    source = block.source.rstrip("\n")
    return new_code_cell(make_cell_source(source) if block.language == "sh" else source)
