"""`draw_schedule`: a schedule as SVG text, one picture or all that apply."""

from __future__ import annotations

from collections.abc import Callable

from ekc.argument_checks import check_choice
from ekc.errors import InvalidInput
from ekc.ir.drawing.banks import draw_banks
from ekc.ir.drawing.fragments import draw_fragments
from ekc.ir.drawing.loops import draw_loops
from ekc.ir.drawing.staging import draw_staging
from ekc.ir.drawing.svg import Figure, SvgText, compose_picture
from ekc.ir.drawing.threads import draw_threads
from ekc.ir.operator import Operator
from ekc.ir.program import Program

PICTURES: dict[str, Callable[[Program], Figure]] = {
    "loops": draw_loops,
    "threads": draw_threads,
    "staging": draw_staging,
    "banks": draw_banks,
    "fragments": draw_fragments,
}
"""Functions that draw, by the name of the picture, in the order of the overview. A function raises
`InvalidInput` where its picture does not apply."""
OVERVIEW = "overview"
PICTURE_NAMES = (OVERVIEW, *PICTURES)


def draw_schedule(op: Operator, program: Program, digest: str, picture: str) -> SvgText:
    """SVG text of the schedule of this digest: the "overview", or one picture of `PICTURES`.

    The overview has every picture that applies, and a line for each that does not. Raises `InvalidInput` for
    another name, and for a single picture that does not apply.
    """
    check_choice("picture", picture, PICTURE_NAMES)
    figures, notes = [], []
    if picture == OVERVIEW:
        for draw in PICTURES.values():
            try:
                figures.append(draw(program))
            except InvalidInput as reason:
                notes.append(f"Not shown: {str(reason).partition(';')[0]}.")
    else:
        figures.append(PICTURES[picture](program))
    title = f"{op.name}, schedule {digest}"
    description = ". ".join([*(figure.heading for figure in figures), *notes])
    return SvgText(compose_picture(title, str(op), description, figures, notes))
