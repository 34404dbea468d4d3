"""Options that the command line gives and nobody would read: refused, since dropping them would mislead."""

from __future__ import annotations

from collections.abc import Container

import click
from click.core import ParameterSource

from ekc.errors import InvalidInput


def refuse_unused_options(unused: Container[str | None], reason: str) -> None:
    """Raises `InvalidInput` where one of these parameters of the running command is given."""
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in unused and source is ParameterSource.COMMANDLINE:
            raise InvalidInput(f"{parameter.opts[0]}: {reason}")
