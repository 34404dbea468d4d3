"""Which of the schedules that were measured is the fastest, and which the best: one rule, for a run and for
what is on file.

Timings cannot tell all of them apart. Of those level with the fastest, the one that takes fewest slots of its
device counts as the fastest: what does the same with less is the last to be slow elsewhere (another clock,
another driver, a neighbour). The closing rounds of a search look for such (`rounds.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

from ekc.devices.base import Interval
from ekc.ir.analysis.analysis import analyse
from ekc.ir.limits import Limits
from ekc.ir.schedule import Schedule
from ekc.search.models import features
from ekc.search.objective import merit

TIE = 0.01
"""Of a latency: what is so much slower in the mean is no tie, however uncertain its timing. Ours."""


class Timed(Protocol):
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


Known = TypeVar("Known", bound=Timed)


def winners(known: Sequence[Known], objective: str, max_slowdown: float) -> tuple[Known, Known]:
    """(best by the objective among those at most so much slower than the fastest, the fastest); at least one
    must be ok. Ties of the objective go to the faster, then to the smaller digest."""
    fastest = by_speed(known)[0]
    if objective == "latency":
        return fastest, fastest
    limit = seconds(fastest) * (1 + max_slowdown)
    near = [x for x in known if x.ok and seconds(x) <= limit]
    return min(near, key=lambda x: rank(x, objective)), fastest


def rank(x: Timed, objective: str) -> tuple[float, float, str]:
    """What to make small; an energy that is not even predicted (a run cut short) comes last."""
    figure = float(merit(objective, seconds(x), math.inf if x.energy_j is None else x.energy_j))
    return (figure if math.isfinite(figure) else math.inf), seconds(x), x.schedule.digest


def by_speed(known: Sequence[Known]) -> list[Known]:
    """Those that are ok, fastest first, and the ones level with the fastest by their slots. A timing that was
    disturbed tells little, and makes nothing the fastest."""
    timed = [x for x in known if x.ok]
    spans = [x.latency_interval_s for x in timed]
    least = min((s for s in spans if s is not None), key=lambda s: s.low + s.high, default=None)

    def key(x: Known) -> tuple[bool, float, float, str]:
        level = _level(x.latency_interval_s, least)
        return not level, slots(x.schedule) if level else 0.0, seconds(x), x.schedule.digest

    return sorted(timed, key=key)


def margin(span: Interval | None) -> float:
    """How much slower a schedule may be than the fastest, timed as said, and still be level with it: as far
    as two such timings can lie apart."""
    return TIE if span is None else min(TIE, 2 * (span.high - span.low) / (span.high + span.low))


def _level(span: Interval | None, least: Interval | None) -> bool:
    """Whether a timing cannot be told from the least."""
    if span is None or least is None:
        return False
    return span.low <= least.high and span.low + span.high <= (1 + TIE) * (least.low + least.high)


@lru_cache(maxsize=1024)
def slots(schedule: Schedule) -> float:
    """Slots that a launch takes, by the analysis: to issue its instructions, and to pass through shared
    memory (`features.slots`)."""
    return float(features.slots(analyse(schedule.program, Limits()))[0])


def seconds(x: Timed) -> float:
    """Its latency; more than any where nobody timed it."""
    return math.inf if x.latency_s is None else x.latency_s
