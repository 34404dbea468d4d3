"""The objectives, and the rule that selects the best kernel among measured schedules.

`SelectionRule` selects the finalists and the winner of a run, the leader that events name, the best of a
record file (`ekc.best`), and the kernels of a bundle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ekc.argument_checks import check_choice, format_value, is_number
from ekc.errors import InvalidInput

OBJECTIVES = ("energy", "latency", "edp")
_OBJECTIVE_SYNONYMS = {"speed": "latency", "time": "latency", "runtime": "latency", "power": "energy"}
"""Words for an objective, and the nearest one."""
DEFAULT_MAX_SLOWDOWN = 0.05
"""Default of the slowdown that the best may have, relative to the fastest."""


def parse_objective(name: str) -> str:
    """Return the name if it is one of the objectives. Raises InvalidInput."""
    return check_choice("objective", name, OBJECTIVES, _OBJECTIVE_SYNONYMS)


def compute_objective(objective: str, latency_s: Any, energy_j: Any) -> Any:
    """Compute the value to minimise: joules, seconds, or joule-seconds."""
    if objective == "latency":
        return latency_s
    return energy_j if objective == "energy" else energy_j * latency_s


def check_slowdown(max_slowdown: float) -> None:
    """Raise `InvalidInput` unless the allowed slowdown is a number from 0 to 10."""
    if not is_number(max_slowdown) or not 0 <= max_slowdown <= 10:
        raise InvalidInput(
            f"max_slowdown: {format_value(max_slowdown)} is outside 0 to 10; 0.05 means at most 5 % slower"
        )


class TimedSchedule(Protocol):
    """The properties of a measured schedule that the selection needs: of a `Candidate`, a `Trial`, or the
    figures that an index has."""

    @property
    def digest(self) -> str:
        """Digest of the schedule."""

    @property
    def ok(self) -> bool:
        """Whether it was timed and did not fail."""

    @property
    def latency_s(self) -> float | None:
        """Mean latency of its timings, in seconds."""

    @property
    def energy_j(self) -> float | None:
        """Energy per call, in joules."""


TimedScheduleT = TypeVar("TimedScheduleT", bound=TimedSchedule)


@dataclass(frozen=True)
class SelectionRule:
    """The best schedule has the least objective among those at most `max_slowdown` slower than the fastest.
    Ties go to the faster, then to the smaller digest. Raises `InvalidInput` for an invalid objective or
    slowdown."""

    objective: str = "energy"
    max_slowdown: float = DEFAULT_MAX_SLOWDOWN

    def __post_init__(self) -> None:
        parse_objective(self.objective)
        check_slowdown(self.max_slowdown)

    def __str__(self) -> str:
        if self.objective == "latency":
            return "by latency"
        return f"by {self.objective}, at most {100 * self.max_slowdown:g} % slower than the fastest"

    def select_winners(self, candidates: Sequence[TimedScheduleT]) -> tuple[TimedScheduleT, TimedScheduleT]:
        """Select (the best, the fastest). At least one candidate must be ok."""
        fastest = sort_by_latency(candidates)[0]
        return self.rank_near(candidates, _get_latency_s(fastest))[0], fastest

    def rank_near(self, candidates: Iterable[TimedScheduleT], fastest_s: float) -> list[TimedScheduleT]:
        """Sort the candidates that are ok and at most `max_slowdown` slower than a latency, best first. An
        energy that is not even predicted, as in an interrupted run, comes last."""
        limit_s = fastest_s * (1 + self.max_slowdown)
        near = [x for x in candidates if x.ok and _get_latency_s(x) <= limit_s]
        return sorted(near, key=self._make_rank_key)

    def _make_rank_key(self, candidate: TimedSchedule) -> tuple[float, float, str]:
        latency_s = _get_latency_s(candidate)
        energy_j = math.inf if candidate.energy_j is None else candidate.energy_j
        value = float(compute_objective(self.objective, latency_s, energy_j))
        return value if math.isfinite(value) else math.inf, latency_s, candidate.digest


DEFAULT_RULE = SelectionRule()


def sort_by_latency(candidates: Iterable[TimedScheduleT]) -> list[TimedScheduleT]:
    """Sort the candidates that are ok, fastest first. Ties go to the smaller digest."""
    return sorted((x for x in candidates if x.ok), key=lambda x: (_get_latency_s(x), x.digest))


def _get_latency_s(candidate: TimedSchedule) -> float:
    """Return the latency of a candidate; infinity if it was not timed."""
    return math.inf if candidate.latency_s is None else candidate.latency_s
