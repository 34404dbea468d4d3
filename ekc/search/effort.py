"""How much a run may spend: `effort="quick"`, "standard" or "full"."""

from __future__ import annotations

from dataclasses import dataclass

from ekc.arguments import check_choice


@dataclass(frozen=True)
class Effort:
    """Trials (rounds and populations follow from them) and what a round must earn its cost in."""

    trials: int
    """Schedules to compile and time, at most."""
    expected_calls: float | None
    """How often the kernel is expected to be called in its life: savings count so many times. None: nobody
    asks what a round earns."""


EFFORTS = {
    "quick": Effort(trials=64, expected_calls=1e7),
    "standard": Effort(trials=256, expected_calls=1e8),
    "full": Effort(trials=1024, expected_calls=1e9),
}
"""By name, each for a kernel that is called ten times as often as the one before."""
DEFAULT_EFFORT = Effort(trials=256, expected_calls=None)


def parse_effort(name: str | None) -> Effort:
    """The effort of that name. Raises InvalidInput."""
    if name is None:
        return DEFAULT_EFFORT
    return EFFORTS[check_choice("effort", name, EFFORTS)]
