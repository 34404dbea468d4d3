"""`ekc space`: print the structures that a search of an operator has, and draw their landscape."""

from __future__ import annotations

from pathlib import Path

import click

import ekc
from ekc.cli.arguments import OperatorCommand, OperatorRequest, operator_arguments
from ekc.cli.output import FILE, json_option, log, print_result, write_text_file
from ekc.cli.sources import target_option


@click.command(cls=OperatorCommand)
@operator_arguments
@target_option
@click.option("--svg", type=FILE, help="Also draw estimated time and energy of a sample into this SVG file.")
@json_option
def space(request: OperatorRequest, target: str, svg: Path | None, as_json: bool) -> None:
    """Print the schedule space of an operator: its structures, and the rules that each comes from.

    Holes are the numbers that a structure leaves open. The share of combinations that is legal on the device
    is estimated from a sample. Nothing is compiled.
    """
    found = ekc.space(request.make_operator(), target)
    if svg is not None:
        write_text_file("--svg", svg, found.draw())
        log(f"wrote {svg}")
    print_result(found.to_json() if as_json else str(found))
