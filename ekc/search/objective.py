"""What the search minimises."""

from __future__ import annotations

from typing import Any

from ekc.arguments import check_choice

OBJECTIVES = ("energy", "latency", "edp")


def parse_objective(name: str) -> str:
    """The name, if it is one of the objectives."""
    return check_choice("objective", name, OBJECTIVES)


def compute_objective(objective: str, latency_s: Any, energy_j: Any) -> Any:
    """The figure to make small: joules, seconds, or joule-seconds."""
    if objective == "latency":
        return latency_s
    return energy_j if objective == "energy" else energy_j * latency_s
