"""One row of the record store: a measurement event, its identity, and its conversion to SQL and back.

`COLUMNS` is the one list of columns. The fields of `RecordConditions`, `RecordKey` and `RecordRow` have the
names of their columns, and the queries are made of both.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar, get_args

from ekc.devices.device import Metering, Timing
from ekc.devices.measurement_json import metering_from_json, timing_from_json
from ekc.errors import InvalidInput, RecordError
from ekc.file_limits import parse_json
from ekc.search.database.conditions import RecordConditions
from ekc.tables import group_pairs
from ekc.version import __version__

RecordKind = Literal["timing", "metering", "failure", "check"]
MeasurementT = TypeVar("MeasurementT", Timing, Metering)


@dataclass(frozen=True)
class RecordKey(RecordConditions):
    """Identity of a measurement: its conditions, and what was measured. Two measurements of one kind with
    equal keys are the same."""

    operator: str
    """JSON text of the operator, from `to_canonical_json`."""
    schedule_digest: str
    draw: int = 0
    """Number of the repeat; 0 for the first measurement of a kernel."""
    window_s: float | None = None
    """Metering window in seconds; None for a timing, a failure or a check."""

    @property
    def conditions(self) -> RecordConditions:
        """The conditions of the measurement."""
        return RecordConditions(*_get_conditions(self))


@dataclass(frozen=True)
class RecordRow:
    """One measurement event: identity, conditions and figures."""

    kind: RecordKind
    key: RecordKey
    schedule: str
    """JSON text of the schedule."""
    status: str
    """"ok", or the failure, as `Trial.status`."""
    payload: Mapping[str, object] = field(default_factory=dict)
    """Figures as JSON values: the fields of a Timing, a Metering or a failure. NaN stays NaN (a card without
    a thermometer); tuples become lists."""
    ekc_version: str = __version__
    created: str = ""
    """Time of the measurement: UTC, ISO 8601. Set by the store."""
    id: int = 0
    """Number of the row in the file, from 1. Set by the store."""
    source: str = field(default="", compare=False)
    """File that the row was read from. Set by the store."""

    @property
    def is_executed(self) -> bool:
        """Whether a verdict comes from executing the kernel, and not from its schedule alone."""
        return bool(self.payload.get("executed_by"))

    def to_timing(self) -> Timing:
        """Read the payload of a timing row. Raises `RecordError` for a damaged payload."""
        return self._read_payload(timing_from_json)

    def to_metering(self) -> Metering:
        """Read the payload of a metering row. Raises `RecordError` for a damaged payload."""
        return self._read_payload(metering_from_json)

    def to_measurement(self) -> Timing | Metering | None:
        """Read the payload; None for a failure or a check. Raises `RecordError` for a damaged payload."""
        if self.kind == "timing":
            return self.to_timing()
        return self.to_metering() if self.kind == "metering" else None

    def _read_payload(self, read: Callable[[Mapping[str, Any]], MeasurementT]) -> MeasurementT:
        try:
            return read(self.payload)
        except InvalidInput as problem:
            what = f"row {self.id} holds no {self.kind}: {problem}"
            raise RecordError(f"{self.source} is damaged: {what}") from problem


COLUMNS = {
    "created": "text not null",
    "kind": "text not null",
    "operator": "text not null",
    "operator_hash": "text not null",
    "schedule_digest": "text not null",
    "schedule": "text not null",
    "device": "text not null",
    "simulated": "integer not null",
    "driver": "text not null",
    "nvrtc": "text not null",
    "clock_regime": "text not null",
    "data_policy": "text not null",
    "ekc_version": "text not null",
    "draw": "integer not null",
    "window_s": "real",
    "payload": "text not null",
    "status": "text not null",
}
"""Columns of the table and their types, beside the number of the row."""
StoredValues = tuple[Any, ...]
"""The columns of a row as they are stored, without its number."""
_CONDITIONS, _KEY = (tuple(x.name for x in fields(kind)) for kind in (RecordConditions, RecordKey))
_get_conditions = operator.attrgetter(*_CONDITIONS)
_IDENTITY = ("kind", "operator_hash", *(name for name in _KEY if name != "operator"))
"""Columns that say what was measured: rows in which they are equal are the same measurement."""
_COLUMN_LINES = ",\n".join(f"    {name} {kind}" for name, kind in COLUMNS.items())
CREATE_TABLE = f"\ncreate table trials (\n    id integer primary key autoincrement,\n{_COLUMN_LINES}\n)"
CREATE_INDEX = "create index trials_identity on trials (operator_hash, schedule_digest, kind)"
VERDICT_CHARACTERS = 16
"""Characters of a status in the index of figures; the longest rejected verdict begins with fewer."""


def _make_figure(name: str) -> str:
    """SQL of a number in a payload, which `to_canonical_json` writes without spaces; null where it is absent.
    Functions of JSON would not do: they refuse NaN, and differ between versions of SQLite."""
    start = f"nullif(instr(payload, '\"{name}\":'), 0) + {len(name) + 3}"
    return f"cast(substr(payload, {start}, 25) as real)"


_FIGURE = f"case kind when 'timing' then {_make_figure('latency_s')} else {_make_figure('power_w')} end"
_VERDICT = f"substr(status, 1, {VERDICT_CHARACTERS})"
_FIGURE_ORDER = "schedule_digest, kind, draw, window_s, id"
_CONDITION_COLUMNS = ", ".join(_CONDITIONS)
_GROUP = f"operator_hash, {_CONDITION_COLUMNS}"
CREATE_FIGURE_INDEX = (
    f"create index trials_figures on trials ({_GROUP}, {_FIGURE_ORDER}, {_FIGURE}, {_VERDICT}, created)"
)
"""Index from which the best of a million rows is found without reading them."""

# Queries of the index. {index} names it; a file of an earlier ekc has none.
GROUPS = (
    f"select {_GROUP}, min(id), min(created), max(created) from trials {{index}} "
    f"where (? is null or operator_hash = ?) group by {_GROUP} order by max(id)"
)
COUNTS = (
    f"select {_CONDITION_COLUMNS}, count(distinct schedule_digest) from trials {{index}} "
    f"where (? is null or operator_hash = ?) and (? is null or kind = ?) group by {_CONDITION_COLUMNS} "
    "order by max(id)"
)
FIGURES = (
    f"select schedule_digest, id, kind, draw, window_s, {_VERDICT}, {_FIGURE} from trials {{index}} "
    f"where {' and '.join(f'{name} = ?' for name in _GROUP.split(', '))} "
    f"order by {_FIGURE_ORDER}"
)
"""Latency, power or verdict of every row of a group, by schedule, those of one measurement in their order."""
DIGESTS = (
    "select schedule_digest, max(id) from trials where substr(schedule_digest, 1, length(?)) = ? "
    "group by schedule_digest"
)
REPEATS = (
    "select kind, schedule_digest, device, count(*), count(distinct payload || status) from trials "
    f"group by {', '.join(_IDENTITY)} having count(*) > 1 order by min(id)"
)
"""Measurements with several rows: number of rows, and of different figures."""
_AFTER_GPU = 'substr(payload, nullif(instr(payload, \'"gpu":"\'), 0) + 7)'
"""SQL of a payload from the UUID of its GPU on; null where it has none."""
GPUS = (
    f"select device, count(distinct nullif(substr({_AFTER_GPU}, 1, instr({_AFTER_GPU}, '\"') - 1), '')) "
    "from trials where kind in ('timing', 'metering') and not simulated group by device order by device"
)
"""Number of GPUs of each real device."""
_NAMES = ", ".join(COLUMNS)
INSERT = f"insert into trials ({_NAMES}) values ({', '.join('?' * len(COLUMNS))})"
INSERT_NUMBERED = f"insert into trials (id, {_NAMES}) values (?, {', '.join('?' * len(COLUMNS))})"
SELECT = f"select id, {_NAMES} from trials"
# `is` and not `=`: a timing has no window, and null = null is not true in SQL.
FIND = f"{SELECT} where {' and '.join(f'{name} is ?' for name in _IDENTITY)} order by id desc limit 1"


@dataclass(frozen=True)
class StoredGroup:
    """The rows of one operator under the same conditions, as the index has them."""

    operator_hash: str
    conditions: RecordConditions
    first_id: int
    first: str
    """Time of the earliest row: UTC, ISO 8601."""
    last: str


def sort_by_time(rows: Iterable[StoredValues]) -> list[StoredValues]:
    """Sort rows by the time of their measurement, each of several identical ones once. Rows of the same time
    are sorted by their other columns, so that the order does not depend on where they come from."""
    return sorted(dict.fromkeys(rows), key=_make_sort_key)


def _make_sort_key(row: StoredValues) -> tuple[object, ...]:
    time = datetime.fromisoformat(row[0])
    # None, which has no order, becomes a pair that has one.
    return time if time.tzinfo else time.replace(tzinfo=UTC), *((x is not None, x) for x in row)


def group_rows(rows: Iterable[RecordRow]) -> dict[tuple[str, RecordConditions], list[RecordRow]]:
    """Group rows by the JSON text of their operator and their conditions, in the order of the first row."""
    return group_pairs(((row.key.operator, row.key.conditions), row) for row in rows)


def to_canonical_json(value: object) -> str:
    """Convert a value to JSON text that is the same for equal values: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def hash_operator(operator: str) -> str:
    """Compute the hash of an operator's canonical JSON text that each row has."""
    return hashlib.sha256(operator.encode()).hexdigest()[:32]


def digest_text(schedule: str) -> str:
    """Compute the digest of a schedule from its JSON text, as `Schedule.digest`."""
    return hashlib.sha256(schedule.encode()).hexdigest()[:16]


def key_to_sql(kind: RecordKind, key: RecordKey) -> tuple[object, ...]:
    """Make the values of `FIND`, in its order."""
    values = vars(key) | {"kind": kind, "operator_hash": hash_operator(key.operator)}
    return tuple(values[name] for name in _IDENTITY)


def row_to_sql(row: RecordRow) -> StoredValues:
    """Make the values of `INSERT`, in its order. Raises InvalidInput for values that SQLite would change."""
    kinds, window = get_args(RecordKind), row.key.window_s
    if row.kind not in kinds:
        raise InvalidInput(f"kind of a record is {row.kind!r}; it must be one of {', '.join(kinds)}")
    if window is not None and not math.isfinite(window):
        # SQLite would turn NaN into null, which means that there is no window.
        raise InvalidInput(f"window_s of a record is {window}; it must be finite, or None for no window")
    try:
        payload = to_canonical_json(dict(row.payload))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"payload of a {row.kind} record cannot be written as JSON: {error}") from error
    made = {"operator_hash": hash_operator(row.key.operator), "payload": payload}
    values = vars(row) | vars(row.key) | made
    return tuple(values[name] for name in COLUMNS)


def group_from_sql(values: tuple[Any, ...], source: str) -> StoredGroup:
    """Make a group of the values of `GROUPS`. Raises RecordError, naming `source`, if they are damaged."""
    digest, *conditions, first_id, first, last = values
    for time in (first, last):
        _check_time(time, first_id, source)
    return StoredGroup(digest, conditions_from_sql(conditions, source), first_id, first, last)


def conditions_from_sql(values: Iterable[Any], source: str) -> RecordConditions:
    """Make conditions of the values of their columns. Raises RecordError, naming `source`, for bytes."""
    device, simulated, *others = values
    if not all(isinstance(value, str) for value in (device, *others)):
        raise RecordError(f"{source} is damaged: the conditions of a row hold bytes where a text belongs")
    return RecordConditions(device, bool(simulated), *others)


def _check_time(created: object, number: int, source: str) -> None:
    try:
        datetime.fromisoformat(created if isinstance(created, str) else "")
    except ValueError:
        raise RecordError(f"{source} is damaged: row {number} says no time ({created!r:.40})") from None


_TEXTS = [
    n for n, kind in COLUMNS.items() if kind == "text not null" and n not in ("operator_hash", "payload")
]
_ROW = ("kind", "schedule", "status", "ekc_version", "created")


def row_from_sql(found: tuple[Any, ...], source: str) -> RecordRow:
    """Make a row of the values of `SELECT`. Raises RecordError, naming `source`, if the row is damaged."""
    number, values = found[0], dict(zip(COLUMNS, found[1:], strict=True))
    if not all(isinstance(values[name], str) for name in _TEXTS):
        raise RecordError(f"{source} is damaged: row {number} holds bytes where a text belongs")
    _check_time(values["created"], number, source)
    if not isinstance(values["draw"], int) or not isinstance(values["window_s"], float | None):
        raise RecordError(f"{source} is damaged: draw or window_s of row {number} is no number")
    if values["operator_hash"] != hash_operator(values["operator"]):
        raise RecordError(f"{source} is damaged: operator_hash of row {number} is not that of its operator")
    try:
        payload = parse_json(values["payload"])
        if not isinstance(payload, dict):
            raise TypeError("not an object")
    except (TypeError, ValueError, AttributeError) as error:
        what = f"the payload of row {number} is not JSON ({error})"
        raise RecordError(f"{source} is damaged: {what}") from error
    values["simulated"] = bool(values["simulated"])
    key = RecordKey(**{name: values[name] for name in _KEY})
    own = {name: values[name] for name in _ROW}
    return RecordRow(key=key, payload=payload, id=number, source=source, **own)
