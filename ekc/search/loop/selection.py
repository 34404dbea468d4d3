"""Which of the schedules that were measured is the fastest, and which the best: one rule, for a run and for
what is on file.

Timings cannot tell all of them apart. Of those level with the fastest, the one that takes fewest slots of its
device counts as the fastest: what does the same with less is the last to be slow elsewhere (another clock,
another driver, a neighbour). The closing rounds of a search look for such (`rounds.py`).

How a run stands: what it has found so far, as its objective sees it, and so what is to be beaten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ekc.devices.statistics import Interval
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.hardware.limits import Limits
from ekc.ir.schedule.schedule import Schedule
from ekc.search.cost_model import features
from ekc.search.data.candidate import Candidate
from ekc.search.data.options import TuneOptions, compute_objective

TIE_TOLERANCE = 0.01
"""Of a latency: what is so much slower in the mean is no tie, however uncertain its timing. Ours."""


class TimedSchedule(Protocol):
    """What the choice must know of a schedule: a `Candidate` of a run, or a `Trial`."""

    @property
    def schedule(self) -> Schedule:
        """Which one."""

    @property
    def ok(self) -> bool:
        """Whether it was timed, and nothing speaks against it."""

    @property
    def latency_s(self) -> float | None:
        """Mean of its timings."""

    @property
    def latency_interval_s(self) -> Interval | None:
        """Where that mean lies."""

    @property
    def energy_j(self) -> float | None:
        """Joules per call."""


TimedScheduleT = TypeVar("TimedScheduleT", bound=TimedSchedule)


def select_winners(
    candidates: Sequence[TimedScheduleT], objective: str, max_slowdown: float
) -> tuple[TimedScheduleT, TimedScheduleT]:
    """(best by the objective among those at most so much slower than the fastest, the fastest); at least one
    must be ok. Ties of the objective go to the faster, then to the smaller digest."""
    fastest = sort_by_latency(candidates)[0]
    if objective == "latency":
        return fastest, fastest
    limit = get_latency_s(fastest) * (1 + max_slowdown)
    near = [x for x in candidates if x.ok and get_latency_s(x) <= limit]
    return min(near, key=lambda x: make_rank_key(x, objective)), fastest


def make_rank_key(candidate: TimedSchedule, objective: str) -> tuple[float, float, str]:
    """What to make small; an energy that is not even predicted (a run cut short) comes last."""
    figure = float(
        compute_objective(
            objective,
            get_latency_s(candidate),
            math.inf if candidate.energy_j is None else candidate.energy_j,
        )
    )
    return (
        (figure if math.isfinite(figure) else math.inf),
        get_latency_s(candidate),
        candidate.schedule.digest,
    )


def sort_by_latency(candidates: Sequence[TimedScheduleT]) -> list[TimedScheduleT]:
    """Those that are ok, fastest first, and the ones level with the fastest by their slots. A timing that was
    disturbed tells little, and makes nothing the fastest."""
    timed = [x for x in candidates if x.ok]
    spans = [x.latency_interval_s for x in timed]
    least = min((s for s in spans if s is not None), key=lambda s: s.low + s.high, default=None)

    def key(x: TimedScheduleT) -> tuple[bool, float, float, str]:
        level = _is_tied(x.latency_interval_s, least)
        return (
            not level,
            count_schedule_slots(x.schedule) if level else 0.0,
            get_latency_s(x),
            x.schedule.digest,
        )

    return sorted(timed, key=key)


def compute_tie_margin(interval: Interval | None) -> float:
    """How much slower a schedule may be than the fastest, timed as said, and still be level with it: as far
    as two such timings can lie apart."""
    return (
        TIE_TOLERANCE
        if interval is None
        else min(TIE_TOLERANCE, 2 * (interval.high - interval.low) / (interval.high + interval.low))
    )


def _is_tied(interval: Interval | None, fastest_interval: Interval | None) -> bool:
    """Whether a timing cannot be told from the least."""
    if interval is None or fastest_interval is None:
        return False
    return interval.low <= fastest_interval.high and interval.low + interval.high <= (1 + TIE_TOLERANCE) * (
        fastest_interval.low + fastest_interval.high
    )


@lru_cache(maxsize=1024)
def count_schedule_slots(schedule: Schedule) -> float:
    """Slots that a launch takes, by the analysis: to issue its instructions, and to pass through shared
    memory (`features.slots`)."""
    return float(features.count_issue_slots(analyse_program(schedule.program, Limits()))[0])


def get_latency_s(candidate: TimedSchedule) -> float:
    """Its latency; more than any where nobody timed it."""
    return math.inf if candidate.latency_s is None else candidate.latency_s


Array = NDArray[np.float64]

INFEASIBILITY_EXPONENT = 2
"""Power of how much slower than allowed a kernel is, by which its objective counts as larger."""


@dataclass(frozen=True, eq=False)
class Incumbent:
    """Of candidates that have a latency. Worked out once for each ranking."""

    options: TuneOptions
    candidates: Sequence[Candidate]

    @cached_property
    def latencies_s(self) -> Array:
        """Of every one."""
        return np.array([c.latency_s for c in self.candidates])

    @cached_property
    def scores(self) -> Array:
        """Of every one, by the energy metered or else believed. To go by the metered alone would leave a run
        that meters few with a mark of its first round, and all it breeds would seem to beat that by far."""
        return self.score(self.latencies_s, np.array([c.power_w for c in self.candidates]))

    @property
    def best(self) -> Candidate:
        """The one of the least score."""
        return self.candidates[int(np.argmin(self.scores))]

    @property
    def tie_margin(self) -> float:
        """How much more than the best score may be as good, as a share of it."""
        alone = self.options.objective == "latency"
        return compute_tie_margin(self.best.latency_interval_s) if alone else TIE_TOLERANCE

    def score(self, latency_s: Any, power_w: Any) -> Array:
        """The objective, and dearer by `TOO_SLOW` for what is too slow to win."""
        asked = compute_objective(self.options.objective, latency_s, latency_s * power_w)
        return np.asarray(asked * np.maximum(latency_s / self.max_latency_s, 1.0) ** INFEASIBILITY_EXPONENT)

    @cached_property
    def max_latency_s(self) -> float:
        """Seconds that a winner may take."""
        return (1 + self.options.max_slowdown) * float(self.latencies_s.min(initial=math.inf))
