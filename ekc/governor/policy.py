"""What the user asks of the governor.

What is better: scores of settings relative to the default, and which of them are allowed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ekc.arguments import format_value, is_number
from ekc.errors import InvalidInput
from ekc.governor.samples import Values

OBJECTIVES = ("energy", "edp", "ed2p", "speed")


@dataclass(frozen=True)
class Policy:
    """The objective and its budget.

    `energy`: least joules per step within `max_slowdown`. `edp`, `ed2p`: least joules times seconds, or
    seconds squared, per step. `speed`: fewest seconds per step that still save `min_saving` of the joules.
    """

    objective: str = "energy"
    max_slowdown: float = 0.05
    """Share of the default's time per step; 0.05 is 5 % slower. Binds `energy` alone."""
    min_saving: float = 0.05
    """Share of the default's joules per step that must go. Binds `speed` alone."""
    remaining_s: float | None = None
    """How long the job still runs, where somebody knows; without it the time it has run is expected again."""

    def __post_init__(self) -> None:
        if not isinstance(self.objective, str) or self.objective not in OBJECTIVES:
            given = format_value(self.objective)
            raise InvalidInput(f"objective {given}: it must be one of {', '.join(OBJECTIVES)}")
        if not is_number(self.max_slowdown) or not 0 <= self.max_slowdown <= 1:
            raise InvalidInput(
                f"max_slowdown {_format_value(self.max_slowdown)}: from 0 to 1; 0.05 is 5 % slower"
            )
        if not is_number(self.min_saving) or not 0 <= self.min_saving < 1:
            raise InvalidInput(
                f"min_saving {_format_value(self.min_saving)}: from 0 to below 1; 0.05 is 5 % of the joules"
            )
        left_s = self.remaining_s
        if left_s is not None and not (is_number(left_s) and 0 <= left_s < math.inf):
            raise InvalidInput(
                f"remaining_s {_format_value(left_s)}: finite seconds, 0 or more; leave it out if unknown"
            )


def _format_value(value: object) -> str:
    """A number in its shortest form; anything else as a message shows it."""
    return f"{value:g}" if isinstance(value, (int, float)) and is_number(value) else format_value(value)


Shares = Values | float


def compute_score(policy: Policy, slowdown: Shares, saving: Shares) -> Values:
    """Lower is better; the default has 1. Arrays of one shape: share of time lost, share of joules saved."""
    time, energy = 1 + np.asarray(slowdown), 1 - np.asarray(saving)
    if policy.objective == "speed":
        return np.asarray(time)
    return np.asarray(energy * time ** {"energy": 0, "edp": 1, "ed2p": 2}[policy.objective])


def compute_violation(policy: Policy, slowdown: Shares, saving: Shares) -> Values:
    """How far outside the budget, as a share; 0 or less is within."""
    if policy.objective == "energy":
        return np.asarray(slowdown) - policy.max_slowdown
    if policy.objective == "speed":
        return policy.min_saving - np.asarray(saving)
    return np.full(np.shape(slowdown), -1.0)


def find_best(policy: Policy, slowdown: Values, saving: Values) -> int | None:
    """Place of the best among those within the budget; None where none is."""
    allowed = compute_violation(policy, slowdown, saving) <= 0
    if not allowed.any():
        return None
    return int(np.where(allowed, compute_score(policy, slowdown, saving), np.inf).argmin())
