"""Selection of the fastest and the best of measured schedules: one rule, for a run and for a record file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar

from ekc.search.data.options import compute_objective


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


def select_winners(
    candidates: Sequence[TimedScheduleT], objective: str, max_slowdown: float
) -> tuple[TimedScheduleT, TimedScheduleT]:
    """Select (the best by the objective among those at most `max_slowdown` slower than the fastest, the
    fastest). At least one candidate must be ok. Ties go to the faster, then to the smaller digest."""
    fastest = sort_by_latency(candidates)[0]
    if objective == "latency":
        return fastest, fastest
    limit = get_latency_s(fastest) * (1 + max_slowdown)
    near = [x for x in candidates if x.ok and get_latency_s(x) <= limit]
    return min(near, key=lambda x: make_rank_key(x, objective)), fastest


def make_rank_key(candidate: TimedSchedule, objective: str) -> tuple[float, float, str]:
    """Make the sort key of a candidate, best first: objective, latency, digest. An energy that is not even
    predicted, as in an interrupted run, comes last."""
    latency_s = get_latency_s(candidate)
    energy_j = math.inf if candidate.energy_j is None else candidate.energy_j
    value = float(compute_objective(objective, latency_s, energy_j))
    return value if math.isfinite(value) else math.inf, latency_s, candidate.digest


def sort_by_latency(candidates: Sequence[TimedScheduleT]) -> list[TimedScheduleT]:
    """Sort the candidates that are ok, fastest first. Ties go to the smaller digest."""
    return sorted((x for x in candidates if x.ok), key=lambda x: (get_latency_s(x), x.digest))


def get_latency_s(candidate: TimedSchedule) -> float:
    """Return the latency of a candidate; infinity if it was not timed."""
    return math.inf if candidate.latency_s is None else candidate.latency_s
