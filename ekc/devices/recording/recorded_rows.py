"""Content of a recording: its origin, and all that was measured of each schedule, as lines in a gzip file
that grows by one member at a time: a kill loses the last one only."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ekc.codegen.compiled import Resources
from ekc.devices.device import MeasurementT, Metering, Peaks, Timing
from ekc.display import format_line
from ekc.errors import DeviceError, RecordError
from ekc.file_limits import MAX_FILE_BYTES
from ekc.host_memory import format_bytes
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator, operator_from_json
from ekc.ir.schedule.schedule import Schedule
from ekc.tables import count_nouns

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
