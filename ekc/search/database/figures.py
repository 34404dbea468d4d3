"""Figures of one schedule, combined from all its rows of one operator under the same conditions."""

from __future__ import annotations

import itertools
import math
import operator
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ekc.devices.device import Metering, Timing
from ekc.devices.measurement_json import FIGURE_BOUNDS
from ekc.devices.statistics import Interval, MeasuredValue, estimate_mean_interval
from ekc.search.data.result import REJECTED_VERDICTS
from ekc.search.database.rows import RecordRow


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
    rows: Iterable[tuple[Any, ...]], read_figure: Callable[[str, int], float]
) -> Iterator[IndexedFigures]:
    """Combine what `RecordStore.read_figures` returns by the rules of `combine_rows`. `read_figure` reads the
    figure of a row, by its kind and number, that is out of bounds or not in the index."""
    for digest, some in itertools.groupby(rows, key=operator.itemgetter(0)):
        yield _combine_indexed_schedule(digest, some, read_figure)


def _combine_indexed_schedule(
    digest: str, rows: Iterable[tuple[Any, ...]], read_figure: Callable[[str, int], float]
) -> IndexedFigures:
    first, finals, powers = list[float](), list[float](), list[float]()
    rejected, longest, failed, measured, before = dict[Any, bool](), 0.0, 0, 0, None
    (least_s, greatest_s), (least_w, greatest_w) = FIGURE_BOUNDS["timing"], FIGURE_BOUNDS["metering"]
    for _, kind, draw, window, number, figure, verdict in rows:
        if window is not None and window > longest:
            longest = window
            powers.clear()
        if kind == "timing":
            if figure is None or not least_s <= figure <= greatest_s:
                figure = read_figure(kind, number)
            found = finals if draw else first
        elif kind == "metering" and window == longest:
            if figure is None or not least_w <= figure <= greatest_w:
                figure = read_figure(kind, number)
            found = powers
        else:
            if kind == "failure":
                failed = max(failed, number)
            elif kind == "metering":
                measured = max(measured, number)
            elif kind == "check":
                rejected[draw, window] = verdict.startswith(REJECTED_VERDICTS)
            continue
        same = kind, draw, window
        if same == before:
            # A later row of the same measurement: the last one counts.
            found.pop()
        found.append(figure)
        before = same
        if number > measured:
            measured = number
    timings = finals or first
    return IndexedFigures(
        digest,
        not any(rejected.values()) and failed <= measured,
        bool(finals),
        math.fsum(timings) / len(timings) if timings else None,
        math.fsum(powers) / len(powers) if powers else None,
    )
