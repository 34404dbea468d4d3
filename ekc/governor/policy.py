"""What the user asks of the governor."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ekc.errors import InvalidInput

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
        if self.objective not in OBJECTIVES:
            raise InvalidInput(f"objective {self.objective!r}: it must be one of {', '.join(OBJECTIVES)}")
        if not 0 <= self.max_slowdown <= 1:
            raise InvalidInput(f"max_slowdown {self.max_slowdown:g}: from 0 to 1; 0.05 is 5 % slower")
        if not 0 <= self.min_saving < 1:
            raise InvalidInput(
                f"min_saving {self.min_saving:g}: from 0 to below 1; 0.05 is 5 % of the joules"
            )
        if self.remaining_s is not None and not 0 <= self.remaining_s < math.inf:
            raise InvalidInput(
                f"remaining_s {self.remaining_s:g}: finite seconds, 0 or more; "
                "leave it out where nobody knows"
            )
