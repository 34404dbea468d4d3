"""One row of the record store: a measurement event, its identity, and its conversion to SQL and back."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar, get_args

from ekc.devices.device import Metering, Timing
from ekc.devices.measurement_json import metering_from_json, timing_from_json
from ekc.errors import InvalidInput, RecordError
from ekc.file_limits import parse_json
from ekc.version import __version__

RecordKind = Literal["timing", "metering", "failure", "check"]
MeasurementT = TypeVar("MeasurementT", Timing, Metering)

CREATE_TABLE = """
create table trials (
    id integer primary key autoincrement,
    created text not null,
    kind text not null,
    operator text not null,
    operator_hash text not null,
    schedule_digest text not null,
    schedule text not null,
    device text not null,
    simulated integer not null,
    driver text not null,
    nvrtc text not null,
    clock_regime text not null,
    data_policy text not null,
    ekc_version text not null,
    draw integer not null,
    window_s real,
    payload text not null,
    status text not null
)"""
CREATE_INDEX = "create index trials_identity on trials (operator_hash, schedule_digest, kind)"
CONDITION_COLUMNS = "device, simulated, clock_regime, data_policy, driver, nvrtc"
"""Columns of `ekc.search.database.conditions.RecordConditions`, in the order of its fields."""
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
CREATE_FIGURE_INDEX = (
    f"create index trials_figures on trials (operator_hash, {CONDITION_COLUMNS}, {_FIGURE_ORDER}, "
    f"{_FIGURE}, {_VERDICT}, created)"
)
"""Index from which the best of a million rows is found without reading them."""
_GROUP = f"operator_hash, {CONDITION_COLUMNS}"
_SAME_GROUP = " and ".join(f"{column} = ?" for column in _GROUP.split(", "))
GROUPS = f"select {_GROUP}, min(id), max(id), min(created), max(created) from trials"
GROUPS_END = f"where (? is null or operator_hash = ?) group by {_GROUP} order by max(id)"
COUNTS = f"select {CONDITION_COLUMNS}, count(distinct schedule_digest), max(id) from trials"
COUNTS_END = (
    f"where (? is null or operator_hash = ?) and (? is null or kind = ?) group by {CONDITION_COLUMNS} "
    "order by max(id)"
)
# As few values as possible: each costs time in a file of a million rows.
FIGURES = (
    f"select schedule_digest, draw, case kind when 'metering' then coalesce(window_s, 0.0) end, {_FIGURE} "
    "from trials"
)
FIGURES_END = f"where {_SAME_GROUP} and kind in ('timing', 'metering') order by {_FIGURE_ORDER}"
VERDICTS = f"select kind, {_VERDICT}, schedule_digest, draw, window_s from trials"
VERDICTS_END = f"where {_SAME_GROUP} and kind in ('check', 'failure') order by {_FIGURE_ORDER}"
FAILURES = "select schedule_digest from trials"
FAILURES_END = (
    f"where {_SAME_GROUP} and kind in ('failure', 'timing', 'metering') group by schedule_digest "
    "having max(case kind when 'failure' then id end) > max(case kind when 'failure' then 0 else id end)"
)
"""Schedules with a failure that no later measurement replaces."""
DIGESTS = (
    "select schedule_digest, max(id) from trials where substr(schedule_digest, 1, length(?)) = ? "
    "group by schedule_digest"
)
IDS_OF_SCHEDULE = "select id from trials where operator_hash = ? and schedule_digest = ? order by id"
_COLUMNS = (
    "created, kind, operator, operator_hash, schedule_digest, schedule, device, simulated, driver, nvrtc, "
    "clock_regime, data_policy, ekc_version, draw, window_s, payload, status"
)
_VERSION, _WINDOW = _COLUMNS.split(", ").index("ekc_version"), _COLUMNS.split(", ").index("window_s")
INSERT = f"insert into trials ({_COLUMNS}) values ({', '.join('?' * len(_COLUMNS.split(',')))})"
INSERT_NUMBERED = INSERT.replace("(created", "(id, created").replace("(?", "(?, ?", 1)
SELECT = f"select id, {_COLUMNS} from trials"
# `is` and not `=`: a timing has no window, and null = null is not true in SQL.
FIND = (
    f"{SELECT} where kind = ? and operator_hash = ? and schedule_digest = ? and device = ? and simulated = ? "
    "and driver = ? and nvrtc = ? and clock_regime = ? and data_policy = ? and draw = ? and window_s is ? "
    "order by id desc limit 1"
)


@dataclass(frozen=True)
class RecordKey:
    """Identity of a measurement: two measurements of one kind with equal keys are the same."""

    operator: str
    """JSON text of the operator, from `to_canonical_json`."""
    schedule_digest: str
    device: str
    simulated: bool
    driver: str
    """Version of the driver; of a simulated device, version of the simulator."""
    nvrtc: str
    """Versions of NVRTC and of the generator, from `codegen.generate.describe_toolchain`."""
    clock_regime: str
    """Clock setting, such as "fixed 1410 MHz"."""
    data_policy: str
    draw: int = 0
    """Number of the repeat; 0 for the first measurement of a kernel."""
    window_s: float | None = None
    """Metering window in seconds; None for a timing, a failure or a check."""


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

    def check_figures(self) -> None:
        """Raise `RecordError` where the payload of a timing or a metering is damaged."""
        if self.kind == "timing":
            self.to_timing()
        elif self.kind == "metering":
            self.to_metering()

    def _read_payload(self, read: Callable[[Mapping[str, Any]], MeasurementT]) -> MeasurementT:
        try:
            return read(self.payload)
        except InvalidInput as problem:
            what = f"row {self.id} holds no {self.kind}: {problem}"
            raise RecordError(f"{self.source} is damaged: {what}") from problem


@dataclass(frozen=True)
class StoredGroup:
    """The rows of one operator under the same conditions, as the index has them."""

    operator_hash: str
    conditions: tuple[Any, ...]
    """Values of `CONDITION_COLUMNS`."""
    first_id: int
    last_id: int
    first: str
    """Time of the earliest row: UTC, ISO 8601."""
    last: str


StoredValues = tuple[Any, ...]
"""The columns of a row as they are stored, without its number: those of `INSERT`."""


def sort_by_time(rows: Iterable[StoredValues]) -> list[StoredValues]:
    """Sort rows by the time of their measurement, each of several identical ones once. Rows of the same time
    are sorted by their other columns, so that the order does not depend on where they come from."""
    return sorted(dict.fromkeys(rows), key=_make_sort_key)


def _make_sort_key(row: StoredValues) -> tuple[object, ...]:
    time, window = datetime.fromisoformat(row[0]), row[_WINDOW]
    # None, which has no order, becomes a pair that has one.
    parts = row[:_WINDOW], (window is not None, window or 0.0), row[_WINDOW + 1 :]
    return time if time.tzinfo else time.replace(tzinfo=UTC), *parts


def describe_measurement(row: StoredValues) -> tuple[object, ...]:
    """Return the columns that say what was measured: kind and `RecordKey`. Rows in which they are equal are
    the same measurement."""
    return (row[1], *row[3:5], *row[6:_VERSION], *row[_VERSION + 1 : _WINDOW + 1])


def get_outcome(row: StoredValues) -> tuple[str, str]:
    """Return the columns that say what came of it: status and payload."""
    return row[_WINDOW + 2], row[_WINDOW + 1]


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
    return (
        kind, hash_operator(key.operator), key.schedule_digest, key.device, key.simulated,
        key.driver, key.nvrtc, key.clock_regime, key.data_policy, key.draw, key.window_s,
    )  # fmt: skip


def row_to_sql(row: RecordRow) -> tuple[object, ...]:
    """Make the values of `INSERT`, in its order. Raises InvalidInput for values that SQLite would change."""
    key = row.key
    kinds = get_args(RecordKind)
    if row.kind not in kinds:
        raise InvalidInput(f"kind of a record is {row.kind!r}; it must be one of {', '.join(kinds)}")
    window = key.window_s
    if window is not None and not math.isfinite(window):
        # SQLite would turn NaN into null, which means that there is no window.
        raise InvalidInput(f"window_s of a record is {window}; it must be finite, or None for no window")
    try:
        payload = to_canonical_json(dict(row.payload))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"payload of a {row.kind} record cannot be written as JSON: {error}") from error
    return (
        row.created, row.kind, key.operator, hash_operator(key.operator), key.schedule_digest, row.schedule,
        key.device, key.simulated, key.driver, key.nvrtc, key.clock_regime, key.data_policy, row.ekc_version,
        key.draw, window, payload, row.status,
    )  # fmt: skip


def group_from_sql(values: tuple[Any, ...], source: str) -> StoredGroup:
    """Make a group of the values of `GROUPS`. Raises RecordError, naming `source`, if they are damaged."""
    digest, *conditions, first_id, last_id, first, last = values
    for time in (first, last):
        _check_time(time, first_id, source)
    return StoredGroup(digest, check_conditions(conditions, source), first_id, last_id, first, last)


def check_conditions(values: Iterable[Any], source: str) -> tuple[Any, ...]:
    """Check values of `CONDITION_COLUMNS`, and make the second, whether the device is simulated, a bool.
    Raises RecordError, naming `source`."""
    device, simulated, *others = values
    if not all(isinstance(value, str) for value in (device, *others)):
        raise RecordError(f"{source} is damaged: the conditions of a row hold bytes where a text belongs")
    return device, bool(simulated), *others


def _check_time(created: object, number: int, source: str) -> None:
    try:
        datetime.fromisoformat(created if isinstance(created, str) else "")
    except ValueError:
        raise RecordError(f"{source} is damaged: row {number} says no time ({created!r:.40})") from None


def row_from_sql(values: tuple[Any, ...], source: str) -> RecordRow:
    """Make a row of the values of `SELECT`. Raises RecordError, naming `source`, if the row is damaged."""
    (
        number, created, kind, operator, stored_hash, digest, schedule, device, simulated,
        driver, nvrtc, regime, policy, version, draw, window, text, status,
    ) = values  # fmt: skip
    names = operator, digest, schedule, device, driver, nvrtc, regime, policy, version
    if not all(isinstance(value, str) for value in (created, kind, status, *names)):
        raise RecordError(f"{source} is damaged: row {number} holds bytes where a text belongs")
    _check_time(created, number, source)
    if not isinstance(draw, int) or not isinstance(window, float | None):
        raise RecordError(f"{source} is damaged: draw or window_s of row {number} is no number")
    if stored_hash != hash_operator(operator):
        raise RecordError(f"{source} is damaged: operator_hash of row {number} is not that of its operator")
    try:
        payload = parse_json(text)
        if not isinstance(payload, dict):
            raise TypeError("not an object")
    except (TypeError, ValueError, AttributeError) as error:
        what = f"the payload of row {number} is not JSON ({error})"
        raise RecordError(f"{source} is damaged: {what}") from error
    key = RecordKey(operator, digest, device, bool(simulated), driver, nvrtc, regime, policy, draw, window)
    return RecordRow(kind, key, schedule, status, payload, version, created, number, source)
