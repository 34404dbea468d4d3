"""Reading a recording, and replaying it as a device. `docs/reference/recordings.md` describes every field.

A recording is gzip of JSON lines. The first line says what the file is; each further line is one event
(operator, schedule, timing, metering, failure, check), in the order they happened. The file grows by one gzip
member at a time: a kill loses the last one only.
"""

from __future__ import annotations

import codecs
import json
import re
import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ekc.codegen.compiled import CompiledKernel, Resources
from ekc.devices.analytic_prior import predict_prior
from ekc.devices.device import MeasurementT, Metering, OfferedClocks, Peaks, Prior, Quantities, Timing
from ekc.devices.measurement_json import dataclass_from_json, metering_from_json, timing_from_json
from ekc.display import format_line
from ekc.errors import DeviceError, RecordError
from ekc.file_limits import MAX_FILE_BYTES, parse_json, read_plain_file
from ekc.host_memory import format_bytes
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator, operator_from_json
from ekc.ir.schedule.schedule import Schedule
from ekc.tables import count_nouns
from ekc.version import __version__

FIRST_REPEAT = 2
"""Number of the first repeat of a measurement; 0 is the first measurement, 1 the first final one."""


@dataclass(frozen=True)
class Origin:
    """Device that was recorded, and the time."""

    name: str
    simulated: bool
    label: str
    arch: str
    driver: str
    clock_regime: str
    data_policy: str
    limits: LaunchLimits
    peaks: Peaks
    ekc_version: str
    created: str
    """UTC time of the recording, ISO 8601."""
    memory_bytes: int | None = None
    """Bytes of memory of the device; None in recordings made before this was kept."""

    @property
    def description(self) -> str:
        """Label, marked as recorded, with the day; it is printed with all figures."""
        return f"{self.label}, recorded {self.created[:10]}"


@dataclass(frozen=True, eq=False)
class RecordedRow:
    """One schedule and its measurements."""

    digest: str
    operator: int
    """Index of the operator in the recording."""
    structure: str
    """Structure of the space that the schedule came from, in words."""
    schedule_json: str
    figures: Mapping[str, float]
    """Figures of the analysis (`ekc.ir.analysis.analysis`), by name."""
    resources: tuple[Resources, ...]
    """Resources of each launch; empty where it could not be compiled."""
    launches: tuple[Mapping[str, Any], ...]
    """Grid, block and shared bytes of each launch."""
    timings: dict[int, Timing] = field(default_factory=dict)
    """Timings by number of the repeat."""
    meterings: dict[int, Metering] = field(default_factory=dict)
    failure: str = ""
    """Why the schedule has no figures: "compile: ..." or "device: ..."; "" where it has."""
    checked: str = ""
    """Verdict of the correctness check; "" without a check."""

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule, each step checked. Raises `RecordError` where it reads as another schedule."""
        found = Schedule.from_json(self.schedule_json)
        if found.digest != self.digest:
            raise RecordError(
                f"schedule {self.digest} of the recording reads back as {found.digest}: "
                f"another ekc wrote it, or the file was changed"
            )
        return found

    def find_timing(self, repeat: int = 0) -> Timing:
        """Recorded timing, with the resources of the kernel. Raises `DeviceError` where there is none."""
        found = _choose_repeat(self.timings, repeat, f"schedule {self.digest} was not timed", self.failure)
        return replace(found, resources=self.resources)

    def find_metering(self, repeat: int = 0) -> Metering:
        """Recorded metering. Raises `DeviceError` where there is none."""
        return _choose_repeat(self.meterings, repeat, f"schedule {self.digest} was not metered", self.failure)


def _choose_repeat(
    figures: Mapping[int, MeasurementT], repeat: int, missing_text: str, failure: str
) -> MeasurementT:
    """The measurement with this number; below the first repeat the last one up to it. A repeat has no
    substitute: one measurement must not count as several."""
    if repeat >= FIRST_REPEAT:
        number = repeat
    else:
        number = max((n for n in figures if n <= repeat), default=min(figures, default=-1))
    if number not in figures:
        raise DeviceError(failure or f"{missing_text}{' so often' if figures else ''} in this recording")
    return figures[number]


@dataclass(frozen=True, eq=False)
class Recording:
    """A recording."""

    path: str
    origin: Origin
    operator_texts: tuple[str, ...]
    """Operators as canonical JSON, in the order they were first measured."""
    rows: tuple[RecordedRow, ...]

    def __repr__(self) -> str:
        return format_line(self, f"{self.origin.description}: {count_nouns(len(self.rows), 'schedule')}")

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """Operators of the recording."""
        return tuple(operator_from_json(json.loads(text)) for text in self.operator_texts)

    @cached_property
    def by_digest(self) -> Mapping[str, RecordedRow]:
        """Rows by the digest of their schedule."""
        return {row.digest: row for row in self.rows}

    @property
    def gpu_uuids(self) -> frozenset[str]:
        """UUIDs of the GPUs that were measured; none for a simulated device."""
        timings = (one.conditions.gpu for row in self.rows for one in row.timings.values())
        meterings = (one.conditions.gpu for row in self.rows for one in row.meterings.values())
        return frozenset(filter(None, (*timings, *meterings)))

    def find_rows(self, op: Operator) -> tuple[RecordedRow, ...]:
        """Rows of an operator. Raises `RecordError`, with the recorded operators, without any."""
        if op not in self.operators:
            operators = "; ".join(str(one).splitlines()[0] for one in self.operators) or "none at all"
            raise RecordError(f"{self.path} has no row of {str(op).splitlines()[0]}; it holds {operators}")
        number = self.operators.index(op)
        return tuple(row for row in self.rows if row.operator == number)


GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS
"""Window bits of a gzip member for zlib."""
PIECE_BYTES = 4096
"""Bytes that are unpacked together; bytes after the end of a member are unpacked again."""


@dataclass(frozen=True)
class UnpackedMembers:
    """Content of the complete members of a file."""

    text: bytes
    complete_bytes: int
    """Bytes of the file with complete members; the rest is a member that was cut short."""


def unpack_members(data: bytes) -> UnpackedMembers:
    """Unpack all complete members. Raises `ValueError` for bytes that are no gzip, damaged, or of more than
    `MAX_FILE_BYTES` when unpacked."""
    parts: list[bytes] = []
    good = unpacked = 0
    while good < len(data):
        one, found, place = zlib.decompressobj(GZIP_WINDOW_BITS), [], good
        try:
            while not one.eof and place < len(data):
                piece = data[place : place + PIECE_BYTES]
                found.append(one.decompress(piece))
                place += len(piece)
                unpacked += len(found[-1])
                if unpacked > MAX_FILE_BYTES:
                    raise ValueError(f"it unpacks to more than {format_bytes(MAX_FILE_BYTES)}")
        except zlib.error as problem:
            raise ValueError(f"{problem}, in the gzip member at byte {good}") from None
        if not one.eof:
            break
        parts += found
        good = place - len(one.unused_data)
    return UnpackedMembers(b"".join(parts), good)


def pack_line(line: bytes) -> bytes:
    """Pack a line as a member; the same bytes for the same line."""
    one = zlib.compressobj(9, zlib.DEFLATED, GZIP_WINDOW_BITS)
    return one.compress(line) + one.flush()


TARGET_PREFIX = "recorded:"
FORMAT_NAME = "ekc recording"
FORMAT_VERSION = 1
"""Version of the format. Raise it when today's reader could not read the file."""
SQLITE_HEADER = b"SQLite format 3"
"""First bytes of a record file, which is the other kind of file with measurements."""


def read_recording(path: str | Path) -> Recording:
    """Read a recording, with a warning without a last event that was cut short by a kill. Raises
    `RecordError` for a file that is absent, no recording, damaged, or of another format version."""
    path = Path(path)
    return parse_recording(path, read_content(path))


def parse_recording(path: Path, data: bytes) -> Recording:
    """The recording in the bytes of a file; see `read_recording`."""
    lines = _parse_lines(path, data)
    return _RecordingParser(path, parse_origin(path, next(lines, {}))).parse(lines)


def read_content(path: Path) -> bytes:
    """Bytes of the file. Raises `RecordError`."""
    try:
        return read_plain_file(path)
    except OSError as problem:
        raise RecordError(
            f"recording {path} cannot be read: {problem.strerror}{_suggest_path(path)}"
        ) from None


def _suggest_path(path: Path) -> str:
    import difflib

    names = [p.name for p in path.parent.glob("*.gz")] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""


def _parse_lines(path: Path, data: bytes) -> Iterator[dict[str, Any]]:
    if data.startswith(SQLITE_HEADER):
        raise RecordError(f"{path} is a file of --records and no recording: --records and `ekc best` read it")
    if data.removeprefix(codecs.BOM_UTF8).startswith(b"{"):
        raise RecordError(f"{path} is not compressed, as a recording is; gzip it")
    try:
        found = unpack_members(data)
        if found.complete_bytes < len(data) and found.text:
            warnings.warn(f"{path}: the last event was cut short and is left out", stacklevel=4)
        for number, line in enumerate(found.text.splitlines(), 1):
            event = parse_json(line)
            if not isinstance(event, dict):
                raise ValueError(f"line {number} is no JSON object")
            yield event
    except ValueError as problem:
        raise RecordError(f"{path} is not a recording of ekc, or is damaged: {problem}") from None


def parse_origin(path: Path, head: Mapping[str, Any]) -> Origin:
    """Origin of a recording, from its first line. Raises `RecordError` for another format."""
    if head.get("format") != FORMAT_NAME:
        raise RecordError(f"{path} is not a recording of ekc: its first line does not say {FORMAT_NAME!r}")
    if head.get("version") != FORMAT_VERSION:
        raise RecordError(
            f"{path} is a recording of format {head.get('version')}; this is ekc {__version__}, which reads "
            f"format {FORMAT_VERSION}: record again, or use the ekc that wrote it ({head.get('ekc_version')})"
        )
    try:
        written = {name: head[name] for name in ("ekc_version", "created")}
        return dataclass_from_json(Origin, {**head["device"], **written})
    except (KeyError, TypeError, ValueError) as problem:
        raise RecordError(
            f"{path} is damaged: its first line does not describe a device ({problem})"
        ) from None


class _RecordingParser:
    """Builds rows from events."""

    def __init__(self, path: Path, origin: Origin) -> None:
        self._path, self._origin = path, origin
        self._operators: list[str] = []
        self._rows: dict[str, RecordedRow] = {}

    def parse(self, events: Iterator[dict[str, Any]]) -> Recording:
        for number, event in enumerate(events, 2):
            try:
                self._parse_event(event)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as problem:
                reason = f"{type(problem).__name__}: {problem}"
                raise RecordError(
                    f"{self._path}, line {number}: not an event of a recording ({reason})"
                ) from None
        rows = tuple(self._rows.values())
        return Recording(str(self._path), self._origin, tuple(self._operators), rows)

    def _parse_event(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "operator":
                self._operators.append(json.dumps(event["operator"], sort_keys=True, separators=(",", ":")))
            case "schedule":
                self._parse_schedule(event)
            case "timing":
                timing = self._check_origin(timing_from_json(event["timing"]))
                self._rows[event["digest"]].timings[_read_count(event, "repeat")] = timing
            case "metering":
                metering = self._check_origin(metering_from_json(event["metering"]))
                self._rows[event["digest"]].meterings[_read_count(event, "repeat")] = metering
            case "failure":
                self._change_row(event, failure=_read_text(event, "status"))
            case "check":
                self._change_row(event, checked=_read_text(event, "verdict"))
            case other:
                raise ValueError(f"there is no event {other!r}")

    def _check_origin(self, measured: MeasurementT) -> MeasurementT:
        """Check that simulated and measured figures are not mixed."""
        if measured.conditions.simulated != self._origin.simulated:
            raise ValueError(f"simulated is {measured.conditions.simulated}, the first line says otherwise")
        return measured

    def _parse_schedule(self, event: dict[str, Any]) -> None:
        digest, number = event["digest"], _read_count(event, "operator")
        schedule = event["schedule"] | {"operator": json.loads(self._operators[number])}
        # In the order of `Schedule.to_json`: the digest is that of the text.
        text = json.dumps({name: schedule[name] for name in ("format", "operator", "steps")})
        self._rows[digest] = RecordedRow(
            digest=digest,
            operator=number,
            structure=_read_text(event, "structure"),
            schedule_json=text,
            figures={name: float(value) for name, value in event["figures"].items()},
            resources=tuple(dataclass_from_json(Resources, r) for r in event["resources"]),
            launches=tuple(event["launches"]),
        )

    def _change_row(self, event: Mapping[str, Any], **changes: Any) -> None:
        self._rows[event["digest"]] = replace(self._rows[event["digest"]], **changes)


def _read_count(event: Mapping[str, Any], name: str) -> int:
    """A count from 0 on; negative numbers would index a list from its end."""
    number = event[name]
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"{name} is {number!r:.40}, which is no whole number from 0 on")
    return number


def _read_text(event: Mapping[str, Any], name: str) -> str:
    text = event[name]
    if not isinstance(text, str):
        raise ValueError(f"{name} is {text!r:.40}, which is no text")
    return text


_DIGEST = re.compile(r"^// *digest ([0-9a-f]{16})$", re.MULTILINE)


class RecordedDevice:
    """The device of a recording. Nothing is measured, so each answer is the same every time."""

    def __init__(self, recording: Recording) -> None:
        origin = recording.origin
        self.recording = recording
        self.name, self.simulated, self.arch = origin.name, origin.simulated, origin.arch
        self.limits, self.peaks, self.driver = origin.limits, origin.peaks, origin.driver
        self.clock_regime, self.data_policy = origin.clock_regime, origin.data_policy
        self.label, self.memory_bytes = origin.description, origin.memory_bytes
        self.collect_facts = None

    @classmethod
    def open(cls, target: str) -> RecordedDevice:
        """The device "recorded:FILE". Raises `RecordError` for the file."""
        file = target.removeprefix(TARGET_PREFIX)
        if not file:
            raise RecordError(f"target {target!r} names no file; write {TARGET_PREFIX}FILE")
        return cls(read_recording(Path(file)))

    def __repr__(self) -> str:
        return format_line(self, f"{self.label}, {self.clock_regime}")

    def time(self, kernel: CompiledKernel, *, repeat: int = 0) -> Timing:
        """Recorded timing of the kernel's schedule. Raises `DeviceError` where there is none."""
        return self._find_row(kernel).find_timing(repeat)

    def meter(self, kernel: CompiledKernel, *, seconds: float = 1.0, repeat: int = 0) -> Metering:
        """Recorded metering of the kernel's schedule, over the recorded window, whatever `seconds`."""
        return self._find_row(kernel).find_metering(repeat)

    def prior(self, quantities: Quantities) -> Prior:
        """The analytic prior for the peaks of the recorded device."""
        return predict_prior(quantities, self.peaks)

    def clocks(self) -> OfferedClocks:
        """No clocks: a recording was made at one clock."""
        return OfferedClocks(reason=f"{self.label} was recorded at {self.clock_regime} only")

    def at_clock(self, mhz: int) -> RecordedDevice:
        """Raises `DeviceError`."""
        raise DeviceError(
            f"{self.label} cannot be set to {mhz} MHz: it was recorded at {self.clock_regime} only"
        )

    def _find_row(self, kernel: CompiledKernel) -> RecordedRow:
        found = _DIGEST.search(kernel.cuda_source)
        row = self.recording.by_digest.get(found[1]) if found else None
        if row is None:
            subject = f"schedule {found[1]}" if found else f"{kernel.name}, which names no schedule,"
            raise DeviceError(
                f"{self.label}: {subject} was not recorded; {self.recording.path} holds "
                f"{len(self.recording.rows)} schedules"
            )
        return row
