"""The pictures of a run by name, as Plotly figures."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from ekc.errors import InvalidInput
from ekc.report.model_pictures import draw_energy, draw_importance, draw_predicted, draw_space
from ekc.report.run_data import RunData
from ekc.report.trial_pictures import draw_front, draw_progress, draw_roofline

PICTURES: dict[str, Callable[[RunData], Any]] = {
    "front": draw_front,
    "progress": draw_progress,
    "roofline": draw_roofline,
    "predicted": draw_predicted,
    "importance": draw_importance,
    "energy": draw_energy,
    "space": draw_space,
}
"""Function that draws each picture, in the order of a report."""


def check_picture(name: object) -> str:
    """Check the name of a picture. Raises `InvalidInput` with the legal names for another one."""
    if isinstance(name, str) and name in PICTURES:
        return name
    near = difflib.get_close_matches(str(name), PICTURES, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InvalidInput(f"picture: no {name!r}; choose one of {', '.join(PICTURES)}{hint}")


def draw_picture(run: RunData, name: str) -> Any:
    """Draw a picture as a `plotly.graph_objects.Figure`. Raises `InvalidInput` for an unknown name, for a
    picture that the run has no data for, and where plotly is missing."""
    if reason := run.missing.get(check_picture(name)):
        raise InvalidInput(f"picture {name}: {reason}")
    return PICTURES[name](run)
