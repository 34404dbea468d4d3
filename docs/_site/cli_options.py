"""A Sphinx extension: the options that describe an operator, which most commands have, are listed once."""

from __future__ import annotations

import re

import click
from sphinx.application import Sphinx

from ekc.cli.arguments import OperatorRequest, operator_arguments

_OPTION = re.compile(r"\.\. option:: (--[\w-]+)")
_NOTE = (":ref:`The options of an operator <operator-options>`.", "")


@click.command()
@operator_arguments
def operator_options(request: OperatorRequest) -> None:
    """Arguments and options of every command that takes an operator."""


_NAMES = {name for parameter in operator_options.params for name in parameter.opts}


def drop_operator_options(app: Sphinx, context: click.Context, lines: list[str]) -> None:
    """Drop these options from the list of a command, in place, and refer to the section that has them."""
    if context.command is operator_options:
        return
    kept: list[str] = []
    drops = False
    for line in lines:
        if option := _OPTION.match(line):
            drops = option[1] in _NAMES
        if not drops:
            kept.append(line)
    if len(kept) < len(lines):
        kept += ["", *_NOTE]
    lines[:] = kept


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the function."""
    app.connect("sphinx-click-process-options", drop_operator_options)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
