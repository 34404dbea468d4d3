"""Plotly, imported on first use, and the look that all pictures share."""

from __future__ import annotations

from types import ModuleType

from ekc.errors import InvalidInput

SIMULATED = "simulated"
"""The word on every picture whose figures come from a model of a device."""
COLORS = {
    "best": "#d1495b",
    "fastest": "#e08e2b",
    "naive": "#7a7a7a",
    "metered": "#2f6db3",
    "predicted": "#8fb4dc",
    "limit": "#5b8c5a",
    "other": "#6f5fa8",
}
"""Colors by role, readable on white and on dark gray."""


def import_plotly() -> ModuleType:
    """Import `plotly.graph_objects`. Raises `InvalidInput` naming the extra where plotly is missing."""
    try:
        import plotly.graph_objects
    except ImportError as problem:
        raise InvalidInput("pictures of a run need plotly: pip install 'ekc[plot]'") from problem
    module: ModuleType = plotly.graph_objects
    return module
