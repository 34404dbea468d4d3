"""Figures of one schedule, combined from all its rows of one operator under the same conditions."""

from __future__ import annotations

import itertools
import math
import operator
import statistics
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from ekc.devices.device import Metering, Timing
from ekc.devices.measurement_json import FIGURE_BOUNDS
from ekc.devices.statistics import Interval, MeasuredValue, estimate_mean_interval
from ekc.errors import RecordError
from ekc.search.data.result import REJECTED_VERDICTS
from ekc.search.database.database import RecordStore
from ekc.search.database.rows import RecordRow, StoredGroup


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
    """Group rows by the digest of their schedule, without those that a later row replaces: of rows with equal
    keys, from two processes, the last one counts."""
    grouped: dict[str, dict[object, RecordRow]] = {}
    for row in rows:
        same = (row.kind, row.key.draw, row.key.window_s)
        found = grouped.setdefault(row.key.schedule_digest, {})
        found.pop(same, None)
        found[same] = row
    return {digest: list(found.values()) for digest, found in grouped.items()}


def combine_rows(rows: Sequence[RecordRow]) -> MeasuredFigures:
    """Combine the rows of one schedule, oldest first. A wrong result, an unsafe kernel, or a failure without
    a later measurement makes the status. Repeats of the finals replace the first timing, and the longest
    metering window the others. Raises `RecordError` for a damaged row."""
    figures = MeasuredFigures()
    longest = max((r.key.window_s or 0.0 for r in rows), default=0.0)
    wrong = any(r.kind == "check" and r.status.startswith(REJECTED_VERDICTS) for r in rows)
    finals = any(r.kind == "timing" and r.key.draw for r in rows)
    for row in rows:
        if row.kind in ("timing", "metering") and not wrong:
            figures.status = "ok"
        if row.kind == "timing" and bool(row.key.draw) == finals:
            figures.timings.append(row.to_timing())
        elif row.kind == "metering" and row.key.window_s == longest:
            figures.meterings.append(row.to_metering())
        elif row.kind == "failure" or (row.kind == "check" and row.status.startswith(REJECTED_VERDICTS)):
            figures.status = row.status
        elif row.kind == "check" and row.is_executed:
            figures.checked = row.status
    return figures


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


def combine_indexed_rows(
    store: RecordStore, group: StoredGroup, failed: Set[str]
) -> Iterator[IndexedFigures]:
    """Combine the timings and meterings of a group by the rules of `combine_rows`, from the index alone.
    `failed`: what `RecordStore.find_failed` returns. Raises `RecordError` for a figure out of bounds."""
    timing_bounds, metering_bounds = FIGURE_BOUNDS["timing"], FIGURE_BOUNDS["metering"]
    for digest, rows in itertools.groupby(store.read_figures(group), key=operator.itemgetter(0)):
        first, finals, powers = list[float](), list[float](), list[float]()
        longest, before = 0.0, None
        for _, draw, window, figure in rows:
            low, high = timing_bounds if window is None else metering_bounds
            if figure is None or not low <= figure <= high:
                refuse_figures(store, group, digest)
            if window is None:
                found = finals if draw else first
            elif window >= longest:
                if window > longest:
                    longest = window
                    powers.clear()
                found = powers
            else:
                continue
            if before == (draw, window) and found:
                # A later row of the same measurement: the last one counts.
                found.pop()
            before = draw, window
            found.append(figure)
        timings = finals or first
        latency_s = math.fsum(timings) / len(timings) if timings else None
        power_w = math.fsum(powers) / len(powers) if powers else None
        yield IndexedFigures(digest, digest not in failed, bool(finals), latency_s, power_w)


def refuse_figures(store: RecordStore, group: StoredGroup, digest: str) -> NoReturn:
    """Raise the `RecordError` of the damaged row of a schedule."""
    for row in store.read_schedule_rows(group.operator_hash, digest):
        row.check_figures()
    raise RecordError(
        f"{store.path} is damaged: its index has other figures of schedule {digest} than its rows; restore a "
        "copy of it, or rebuild the index with `reindex` of sqlite3"
    )
