"""Contents of a record file: its operators under each conditions, the schedules of one operator, and all
measurements as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from ekc.errors import InvalidInput, RecordError
from ekc.search.database.conditions import RecordConditions
from ekc.search.database.database import RecordStore
from ekc.search.database.figures import (
    MeasuredFigures,
    combine_indexed_rows,
    combine_rows,
    group_by_schedule,
)
from ekc.search.database.query import read_operator
from ekc.search.database.rows import RecordRow, StoredGroup, group_rows

MAX_NAMED = 4
"""Operators or devices that one line names, at most."""


@dataclass(frozen=True)
class RecordGroup:
    """The rows of one operator on one device, under the same conditions, oldest first."""

    operator: str
    """The operator in words, such as "matvec(A[64, 64] float32, x[64] float32)"."""
    conditions: RecordConditions
    rows: tuple[RecordRow, ...]

    def list_schedules(self) -> list[ScheduleSummary]:
        """List the schedules by energy, then those without by latency, then those that failed."""
        found = [
            ScheduleSummary(digest, rows[-1].created, combine_rows(rows))
            for digest, rows in group_by_schedule(self.rows).items()
        ]
        return sorted(found, key=lambda one: one.rank)


@dataclass(frozen=True)
class GroupSummary:
    """Counts and best figures of the rows of one operator under the same conditions. The best latency and the
    best energy may be of two schedules."""

    operator: str
    """The operator in words, as `RecordGroup.operator`."""
    conditions: RecordConditions
    schedules: int
    timed: int
    metered: int
    failed: int
    """Schedules that did not compile or run, or gave a wrong result."""
    best_latency_s: float | None
    best_energy_j: float | None
    first: str
    """Time of the first row: UTC, ISO 8601."""
    last: str


@dataclass(frozen=True)
class ScheduleSummary:
    """One schedule of a group, with its combined figures."""

    digest: str
    last: str
    """Time of its last row: UTC, ISO 8601."""
    figures: MeasuredFigures

    @property
    def rank(self) -> tuple[bool, float, float, str]:
        """Key that sorts by energy, then latency; failed schedules come last."""
        figures = self.figures
        energy, latency = figures.energy_j, figures.latency_s
        return (
            figures.status != "ok",
            math.inf if energy is None else energy,
            math.inf if latency is None else latency,
            self.digest,
        )


def summarize_groups(path: str | Path) -> list[GroupSummary]:
    """Summarise a record file, in the order of the first rows, from its index of figures. Raises
    `RecordError`, also for a file without a row."""
    with RecordStore(path, create=False) as store:
        groups = sorted(store.list_groups(), key=lambda one: one.first_id)
        if not groups:
            raise RecordError(f"{path} is empty: no record was ever written to it")
        texts = [store.read_row(one.first_id).key.operator for one in groups]
        names = _name_operators(texts, path)
        return [_summarize(store, one, names[text]) for one, text in zip(groups, texts, strict=True)]


def _summarize(store: RecordStore, group: StoredGroup, operator: str) -> GroupSummary:
    found = list(combine_indexed_rows(store, group))
    good = [one for one in found if one.ok and (one.latency_s or one.power_w)]
    failed = sum(not one.ok for one in found)
    return GroupSummary(
        operator=operator,
        conditions=group.conditions,
        schedules=len(good) + failed,
        timed=sum(one.latency_s is not None for one in found),
        metered=sum(one.power_w is not None for one in found),
        failed=failed,
        best_latency_s=min((one.latency_s for one in good if one.latency_s), default=None),
        best_energy_j=min((one.energy_j for one in good if one.energy_j), default=None),
        first=group.first,
        last=group.last,
    )


def read_groups(path: str | Path) -> list[RecordGroup]:
    """Read a record file as groups, in the order of their first row. Raises `RecordError`."""
    found = group_rows(read_rows(path))
    names = _name_operators((text for text, _ in found), path)
    return [RecordGroup(names[text], there, tuple(some)) for (text, there), some in found.items()]


def read_rows(path: str | Path) -> list[RecordRow]:
    """Read all rows of a record file, oldest first. Raises `RecordError`, also for a file without a row."""
    with RecordStore(path, create=False) as store:
        rows = list(store.read_rows())
    if not rows:
        raise RecordError(f"{path} is empty: no record was ever written to it")
    return rows


def _name_operators(texts: Iterable[str], path: str | Path) -> dict[str, str]:
    """The first line of each operator in words, by its JSON text."""
    return {text: str(read_operator(text, path)).splitlines()[0] for text in dict.fromkeys(texts)}


def find_groups(groups: Sequence[RecordGroup], operator: str | None, path: str | Path) -> list[RecordGroup]:
    """Find the groups of an operator, given as the canonical JSON text of its rows; None: of the only one in
    the file. Raises `InvalidInput`, which names those that are there."""
    texts = dict.fromkeys(group.rows[0].key.operator for group in groups)
    names = list(dict.fromkeys(group.operator for group in groups))
    listed = "; ".join([*names[:MAX_NAMED], *(["..."] if len(names) > MAX_NAMED else [])])
    if operator is None and len(texts) > 1:
        raise InvalidInput(f"{path} holds {len(texts)} operators ({listed}); name one after it")
    found = [group for group in groups if operator in (None, group.rows[0].key.operator)]
    if not found:
        raise InvalidInput(f"{path} holds no row of this operator; it holds {listed}")
    return found


def find_schedule_groups(groups: Sequence[RecordGroup], digest: str, path: str | Path) -> list[RecordGroup]:
    """Find the groups of the schedule whose digest begins so, each with its rows alone. Raises
    `InvalidInput` for none and for several."""
    digests = {row.key.schedule_digest for group in groups for row in group.rows}
    found = sorted(one for one in digests if one.startswith(digest))
    if len(found) > 1:
        raise InvalidInput(f"{digest!r} begins {len(found)} digests in {path}; give more of {found[0]}")
    if not found:
        raise InvalidInput(f"{digest!r} begins no digest in {path}; ekc records show {path} lists them")
    chosen = [
        RecordGroup(
            group.operator, group.conditions, tuple(r for r in group.rows if r.key.schedule_digest in found)
        )
        for group in groups
    ]
    return [group for group in chosen if group.rows]


CSV_COLUMNS = {
    "id": "row.id",
    "created_utc": "row.created",
    "kind": "row.kind",
    "operator": "",
    "schedule_digest": "key.schedule_digest",
    "device": "key.device",
    "simulated": "key.simulated",
    "gpu_uuid": "conditions.gpu",
    "driver": "key.driver",
    "nvrtc": "key.nvrtc",
    "clock_regime": "key.clock_regime",
    "data_policy": "key.data_policy",
    "ekc_version": "row.ekc_version",
    "draw": "key.draw",
    "requested_window_s": "key.window_s",
    "status": "row.status",
    "latency_s": "timing.latency_s",
    "latency_low_s": "timing.interval_s.low",
    "latency_high_s": "timing.interval_s.high",
    "power_w": "metering.power_w",
    "power_low_w": "metering.power_interval_w.low",
    "power_high_w": "metering.power_interval_w.high",
    "energy_j": "metering.energy_j",
    "energy_low_j": "metering.energy_interval_j.low",
    "energy_high_j": "metering.energy_interval_j.high",
    "idle_power_w": "metering.idle_power_w",
    "window_s": "metering.window_s",
    "samples": "timing.samples metering.samples",
    "calls_per_sample": "timing.calls",
    "method": "timing.method metering.estimator",
    "clock_mhz": "conditions.clock_mhz",
    "temperature_c": "conditions.temperature_c",
    "throttle": "conditions.throttle",
    "power_cap_w": "conditions.power_cap_w",
}
"""Columns of the CSV, and the attributes that they come from; the operator is written in words. Low and high
are the ends of 95 % intervals. A cell is empty where a row has no such figure: a timing has no energy."""


def format_csv(path: str | Path) -> str:
    """Format the measurements of a record file as CSV with `CSV_COLUMNS` and the readings of observers, one
    line per row. The samples and the steps of the schedules are left out. Raises `RecordError`."""
    rows = read_rows(path)
    names = _name_operators((row.key.operator for row in rows), path)
    text, listed = io.StringIO(), [list_measurement(row) for row in rows]
    columns = dict.fromkeys([*CSV_COLUMNS, *(name for one in listed for name in one)])
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(x | {"operator": names[row.key.operator]} for x, row in zip(listed, rows, strict=True))
    return text.getvalue()


def list_measurement(row: RecordRow) -> dict[str, Any]:
    """List identity, conditions and figures of a row by column of `CSV_COLUMNS`, without the operator and
    without figures that the row does not have. Raises `RecordError` for a damaged row."""
    measured = row.to_measurement()
    sources = {"row": row, "key": row.key}
    if measured is not None:
        sources |= {row.kind: measured, "conditions": measured.conditions}
    values = {
        column: attrgetter(name)(sources[source])
        for column, paths in CSV_COLUMNS.items()
        for source, _, name in (path.partition(".") for path in paths.split())
        if source in sources
    }
    values["simulated"] = int(row.key.simulated)
    if measured is not None:
        values["throttle"] = "; ".join(measured.conditions.throttle)
        values |= measured.readings
    absent = {name for name in ("clock_mhz", "temperature_c") if math.isnan(values.get(name, 0.0))}
    return {name: value for name, value in values.items() if value is not None and name not in absent}
