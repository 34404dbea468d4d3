"""Figures of one schedule, combined from all its rows of one operator under the same conditions."""

from __future__ import annotations

import itertools
import math
import operator
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, NoReturn, TypeVar

from ekc.devices.device import Metering, Timing
from ekc.devices.measurement_json import FIGURE_BOUNDS
from ekc.devices.statistics import Interval, MeasuredValue, estimate_mean_interval
from ekc.errors import RecordError
from ekc.search.data.result import REJECTED_VERDICTS
from ekc.search.database.database import RecordStore
from ekc.search.database.rows import RecordKind, RecordRow, StoredGroup
from ekc.tables import group_pairs

ValueT = TypeVar("ValueT")


@dataclass
class MeasuredFigures:
    """Status of one schedule by its rows, and the timings and meterings that count."""

    status: str = "ok"
    """"ok", or the failure, as `Trial.status`."""
    timings: list[Timing] = field(default_factory=list)
    meterings: list[Metering] = field(default_factory=list)
    checked: str = ""
    """Verdict of executing the kernel; "" if it was not executed."""

    @property
    def latency_s(self) -> float | None:
        """Mean latency of a call in seconds; None without a timing."""
        return statistics.fmean(t.latency_s for t in self.timings) if self.timings else None

    @property
    def power_w(self) -> float | None:
        """Mean metered power in watts; None without a metering."""
        return statistics.fmean(m.power_w for m in self.meterings) if self.meterings else None

    @property
    def energy_j(self) -> float | None:
        """Energy of a call in joules: mean power times mean latency; None without both."""
        if self.latency_s is None or self.power_w is None:
            return None
        return self.power_w * self.latency_s

    @property
    def energy_interval_j(self) -> Interval | None:
        """95 % confidence interval of the metered energy in joules; None without a metering."""
        return estimate_mean_interval(
            [MeasuredValue(m.energy_j, m.energy_interval_j) for m in self.meterings]
        )


def group_by_schedule(rows: Iterable[RecordRow]) -> dict[str, list[RecordRow]]:
    """Group rows by the digest of their schedule."""
    return group_pairs((row.key.schedule_digest, row) for row in rows)


class Outcome(NamedTuple, Generic[ValueT]):
    """The result of one measurement event: the part of a row that decides which rows count."""

    id: int
    """Number of the row in its order, from 1."""
    kind: RecordKind
    draw: int
    window_s: float | None
    status: str
    value: ValueT
    """The row, or its figure."""


class CountingOutcomes(NamedTuple, Generic[ValueT]):
    """The outcomes of one schedule that count."""

    status: str
    timings: list[ValueT]
    meterings: list[ValueT]
    checks: list[ValueT]
    is_finalist: bool
    """Whether it was timed again in the finals."""


def select_counting(outcomes: Iterable[Outcome[ValueT]]) -> CountingOutcomes[ValueT]:
    """Select the outcomes of one schedule that count. Of those of the same measurement, from two processes,
    the last one counts: the outcomes of a measurement are in their order. A wrong result, an unsafe kernel,
    or a failure without a later measurement makes the status. Repeats of the finals replace the first timing,
    and the longest metering window the others."""
    latest = {one[1:4]: one for one in outcomes}
    ordered = sorted(latest.values(), key=_get_number)
    timings, meterings, checks, failures = (
        [one for one in ordered if one[1] == kind] for kind in ("timing", "metering", "check", "failure")
    )
    finals = [one for one in timings if one.draw]
    longest = max([one.window_s or 0.0 for one in meterings], default=0.0)
    rejected = [one for one in checks if one.status.startswith(REJECTED_VERDICTS)]
    status = "ok"
    if failures or rejected:
        last = max(failures + rejected, key=_get_number)
        if rejected or last.id > max([one.id for one in timings + meterings], default=0):
            status = last.status
    return CountingOutcomes(
        status,
        [one.value for one in finals or timings],
        [one.value for one in meterings if (one.window_s or 0.0) == longest],
        [one.value for one in checks],
        bool(finals),
    )


_get_number = operator.itemgetter(0)


def combine_rows(rows: Sequence[RecordRow]) -> MeasuredFigures:
    """Combine the rows of one schedule, oldest first, by the rules of `select_counting`. Raises `RecordError`
    for a damaged row."""
    found = select_counting(
        Outcome(number, row.kind, row.key.draw, row.key.window_s, row.status, row)
        for number, row in enumerate(rows, 1)
    )
    executed = (row.status for row in reversed(found.checks) if row.is_executed)
    return MeasuredFigures(
        status=found.status,
        timings=[row.to_timing() for row in found.timings],
        meterings=[row.to_metering() for row in found.meterings],
        checked=next((status for status in executed if not status.startswith(REJECTED_VERDICTS)), ""),
    )


class IndexedFigures(NamedTuple):
    """Figures of one schedule from the index of a record file; its rows were not read."""

    digest: str
    ok: bool
    """Whether it did not fail; false for a wrong result and for an unsafe kernel."""
    is_finalist: bool
    """Whether it was timed again in the finals."""
    latency_s: float | None
    power_w: float | None

    @property
    def energy_j(self) -> float | None:
        """Energy of a call in joules, as `MeasuredFigures.energy_j`."""
        return None if self.latency_s is None or self.power_w is None else self.power_w * self.latency_s


def combine_indexed_rows(store: RecordStore, group: StoredGroup) -> Iterator[IndexedFigures]:
    """Combine the rows of a group by the rules of `select_counting`, from the index alone. Raises
    `RecordError` for a figure out of bounds."""
    for digest, found in itertools.groupby(store.read_figures(group), key=operator.itemgetter(0)):
        outcomes: list[Outcome[float]] = [Outcome._make(values[1:]) for values in found]
        for one in outcomes:
            bounds = FIGURE_BOUNDS.get(one.kind)
            if bounds and not bounds[0] <= (one.value or 0.0) <= bounds[1]:
                refuse_figures(store, group, digest)
        counting = select_counting(outcomes)
        latency_s, power_w = (
            math.fsum(some) / len(some) if some else None for some in (counting.timings, counting.meterings)
        )
        yield IndexedFigures(digest, counting.status == "ok", counting.is_finalist, latency_s, power_w)


def refuse_figures(store: RecordStore, group: StoredGroup, digest: str) -> NoReturn:
    """Raise the `RecordError` of the damaged row of a schedule."""
    for row in store.read_group_rows(group, schedule_digest=digest):
        row.to_measurement()
    raise RecordError(
        f"{store.path} is damaged: its index has other figures of schedule {digest} than its rows; restore a "
        "copy of it, or rebuild the index with `reindex` of sqlite3"
    )
