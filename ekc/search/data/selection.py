"""Selection of the fastest and the best of measured schedules: one rule, for a run and for a record file.

Timings cannot rank all schedules. Among those tied with the fastest, the one with the fewest
issue slots counts as the fastest: it uses least of the device, and so is least likely to be slow at another
clock, with another driver or beside another job.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ekc.devices.statistics import Interval
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.hardware.target import Limits
from ekc.ir.schedule.schedule import Schedule
from ekc.search.data.defaults import SELECTION
from ekc.search.data.options import compute_objective


class TimedSchedule(Protocol):
    """The properties of a measured schedule that the selection needs: a `Candidate` or a `Trial`."""

    @property
    def schedule(self) -> Schedule:
        """The schedule."""

    @property
    def ok(self) -> bool:
        """Whether it was timed and did not fail."""

    @property
    def latency_s(self) -> float | None:
        """Mean latency of its timings, in seconds."""

    @property
    def latency_interval_s(self) -> Interval | None:
        """Confidence interval of the mean latency."""

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
    return value if math.isfinite(value) else math.inf, latency_s, candidate.schedule.digest


def sort_by_latency(candidates: Sequence[TimedScheduleT]) -> list[TimedScheduleT]:
    """Sort the candidates that are ok, fastest first; those tied with the fastest by issue slots. A disturbed
    timing has a wide interval, which makes no schedule the fastest."""
    timed = [x for x in candidates if x.ok]
    intervals = [x.latency_interval_s for x in timed]
    least = min((s for s in intervals if s is not None), key=lambda s: s.low + s.high, default=None)

    def make_key(x: TimedScheduleT) -> tuple[bool, float, float, str]:
        tied = _is_tied(x.latency_interval_s, least)
        slots = count_schedule_slots(x.schedule) if tied else 0.0
        return not tied, slots, get_latency_s(x), x.schedule.digest

    return sorted(timed, key=make_key)


def compute_tie_margin(interval: Interval | None) -> float:
    """Relative latency difference up to which a schedule is tied with one of this latency interval: the width
    of two such intervals, at most `tie_tolerance`."""
    if interval is None:
        return SELECTION.tie_tolerance
    return min(SELECTION.tie_tolerance, 2 * (interval.high - interval.low) / (interval.high + interval.low))


def _is_tied(interval: Interval | None, fastest_interval: Interval | None) -> bool:
    """Whether a latency does not differ significantly from that of the fastest."""
    if interval is None or fastest_interval is None:
        return False
    largest_sum = (1 + SELECTION.tie_tolerance) * (fastest_interval.low + fastest_interval.high)
    return interval.low <= fastest_interval.high and interval.low + interval.high <= largest_sum


def get_latency_s(candidate: TimedSchedule) -> float:
    """Return the latency of a candidate; infinity if it was not timed."""
    return math.inf if candidate.latency_s is None else candidate.latency_s


@lru_cache(maxsize=1024)
def count_schedule_slots(schedule: Schedule) -> float:
    """Count the issue slots that a launch of the schedule takes, by the analysis."""
    return float(count_issue_slots(analyse_program(schedule.program, Limits()))[0])


_ISSUE_SLOT_QUANTITIES = tuple(
    f"total_{what}"
    for what in (
        *("operations", "loop_steps", "barriers", "shuffles", "conversions", "guards"),
        *(f"{scope}_{way}_requests" for scope in ("global", "shared") for way in ("load", "store")),
        *("shared_load_wavefronts", "shared_store_wavefronts"),
    )
)


def count_issue_slots(quantities: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Count the issue slots of each analysed schedule: warp instructions, one for each loop step, and
    wavefronts of shared memory. Each prefetched tile takes off the share `prefetch_discount`."""
    counted = sum((quantities[name] for name in _ISSUE_SLOT_QUANTITIES), -quantities["total_async_copies"])
    stages = np.minimum(quantities["pipeline"] - 1, SELECTION.max_discounted_stages)
    return np.asarray(counted * (1 - SELECTION.prefetch_discount * stages))
