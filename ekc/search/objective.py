"""What the search minimises."""

from __future__ import annotations

import difflib
from typing import Any

from ekc.errors import InvalidInput

OBJECTIVES = ("energy", "latency", "edp")


def checked_objective(name: str) -> str:
    """The name, if it is one of the objectives."""
    if name not in OBJECTIVES:
        near = difflib.get_close_matches(str(name), OBJECTIVES, n=1, cutoff=0.0)[0]
        raise InvalidInput(
            f"objective: {name!r} is not one of {', '.join(OBJECTIVES)}; the nearest is {near!r}"
        )
    return name


def merit(objective: str, latency_s: Any, energy_j: Any) -> Any:
    """The figure to make small: joules, seconds, or joule-seconds."""
    if objective == "latency":
        return latency_s
    return energy_j if objective == "energy" else energy_j * latency_s
