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
from ekc.search.database.rows import RecordRow, StoredGroup

MAX_NAMED = 4
"""Operators or devices that one line names, at most."""


@dataclass(frozen=True)
class NamedGroup(StoredGroup):
    """The rows of one operator under the same conditions, with the operator."""

    text: str
    """The operator as canonical JSON text."""
    operator: str
    """The operator in words, such as "matvec(A[64, 64] float32, x[64] float32)"."""


@dataclass(frozen=True)
class GroupSummary:
    """Counts and best figures of the rows of one operator under the same conditions. The best latency and the
    best energy may be of two schedules."""

    operator: str
    """The operator in words, as `NamedGroup.operator`."""
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


def list_named_groups(store: RecordStore) -> list[NamedGroup]:
    """List the groups of a record file from its index of figures, in the order of the first rows. Raises
    `RecordError`, also for a file without a row."""
    groups = sorted(store.list_groups(), key=attrgetter("first_id"))
    if not groups:
        raise RecordError(f"{store.path} is empty: no record was ever written to it")
    texts = [store.read_row(one.first_id).key.operator for one in groups]
    names = _name_operators(texts, str(store.path))
    return [NamedGroup(**vars(one), text=x, operator=names[x]) for one, x in zip(groups, texts, strict=True)]


def summarize_groups(path: str | Path) -> list[GroupSummary]:
    """Summarise a record file, in the order of the first rows, from its index of figures. Raises
    `RecordError`, also for a file without a row."""
    with RecordStore(path, create=False) as store:
        return [_summarize(store, one) for one in list_named_groups(store)]


def _summarize(store: RecordStore, group: NamedGroup) -> GroupSummary:
    found = list(combine_indexed_rows(store, group))
    good = [one for one in found if one.ok and (one.latency_s or one.power_w)]
    failed = sum(not one.ok for one in found)
    return GroupSummary(
        operator=group.operator,
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


def list_schedules(store: RecordStore, group: NamedGroup) -> list[ScheduleSummary]:
    """List the schedules of a group by energy, then those without by latency, then those that failed."""
    found = [
        ScheduleSummary(digest, some[-1].created, combine_rows(some))
        for digest, some in group_by_schedule(store.read_group_rows(group)).items()
    ]
    return sorted(found, key=attrgetter("rank"))


def _name_operators(texts: Iterable[str], path: str | Path) -> dict[str, str]:
    """The first line of each operator in words, by its JSON text."""
    return {text: str(read_operator(text, path)).splitlines()[0] for text in dict.fromkeys(texts)}


def find_groups(groups: Sequence[NamedGroup], operator: str | None, path: str | Path) -> list[NamedGroup]:
    """Find the groups of an operator, given as the canonical JSON text of its rows; None: of the only one in
    the file. Raises `InvalidInput`, which names those that are there."""
    texts = dict.fromkeys(group.text for group in groups)
    names = list(dict.fromkeys(group.operator for group in groups))
    listed = "; ".join([*names[:MAX_NAMED], *(["..."] if len(names) > MAX_NAMED else [])])
    if operator is None and len(texts) > 1:
        raise InvalidInput(f"{path} holds {len(texts)} operators ({listed}); name one after it")
    found = [group for group in groups if operator in (None, group.text)]
    if not found:
        raise InvalidInput(f"{path} holds no row of this operator; it holds {listed}")
    return found


def read_schedule_groups(
    store: RecordStore, groups: Sequence[NamedGroup], start: str
) -> list[tuple[NamedGroup, list[RecordRow]]]:
    """Read the rows of the schedule whose digest begins so, by group. Raises `InvalidInput` for none and for
    several."""
    pairs = [(group, digest) for digest in sorted(store.find_digests(start)) for group in groups]
    read = [(group, digest, store.read_group_rows(group, schedule_digest=digest)) for group, digest in pairs]
    found = list(dict.fromkeys(digest for _, digest, rows in read if rows))
    if len(found) > 1:
        raise InvalidInput(f"{start!r} begins {len(found)} digests in {store.path}; give more of {found[0]}")
    if not found:
        raise InvalidInput(
            f"{start!r} begins no digest in {store.path}; ekc records show {store.path} lists them"
        )
    return [(group, rows) for group, _, rows in read if rows]


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
    with RecordStore(path, create=False) as store:
        rows = list(store.read_rows())
    if not rows:
        raise RecordError(f"{path} is empty: no record was ever written to it")
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
