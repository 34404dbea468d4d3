"""What a recording holds: where it was made, and for each schedule everything that was measured of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

from ekc.codegen.compiled import Resources
from ekc.devices.device import Metering, Peaks, Timing
from ekc.errors import DeviceError, RecordError
from ekc.ir.hardware.limits import Limits
from ekc.ir.operator import Operator, operator_from_json
from ekc.ir.schedule.schedule import Schedule

Figure = TypeVar("Figure", Timing, Metering)
FIRST_REPEAT = 2
"""The first repeat of a measurement. Before it there are a first look (0) and a first final (1)."""


@dataclass(frozen=True)
class Origin:
    """The device that was recorded, and when."""

    name: str
    simulated: bool
    label: str
    arch: str
    driver: str
    clock_regime: str
    data_policy: str
    limits: Limits
    peaks: Peaks
    ekc_version: str
    created: str
    """UTC, ISO 8601."""
    memory_bytes: int | None = None
    """Memory of the device; None in recordings made before this was kept."""

    @property
    def description(self) -> str:
        """The label, that it is recorded, and the day: what is printed wherever its figures are."""
        return f"{self.label}, recorded {self.created[:10]}"


@dataclass(frozen=True, eq=False)
class RecordedRow:
    """One schedule and what was measured of it."""

    digest: str
    operator: int
    """Which of the recording's operators."""
    structure: str
    """The structure of the space that it came from, in words."""
    schedule_json: str
    figures: Mapping[str, float]
    """What the analysis of `ekc.ir.analysis.analysis` says of it, by name."""
    resources: tuple[Resources, ...]
    """One per launch; empty where it could not be compiled."""
    launches: tuple[Mapping[str, Any], ...]
    """Grid, block and shared bytes of each launch."""
    timings: Mapping[int, Timing]
    """By number of the repeat."""
    meterings: Mapping[int, Metering]
    failure: str
    """Why it has no figures, or "": "compile: ..." or "device: ..."."""
    checked: str
    """The verdict of the correctness gate, or "" where none was asked for."""

    @cached_property
    def schedule(self) -> Schedule:
        """Every step checked again. Raises `RecordError` where it reads back as another schedule."""
        found = Schedule.from_json(self.schedule_json)
        if found.digest != self.digest:
            raise RecordError(
                f"schedule {self.digest} of the recording reads back as {found.digest}: "
                f"another ekc wrote it, or the file was changed"
            )
        return found

    def find_timing(self, repeat: int = 0) -> Timing:
        """With what ptxas gave the kernel then. Raises `DeviceError` for what was not recorded."""
        found = _choose_repeat(self.timings, repeat, f"schedule {self.digest} was not timed", self.failure)
        return replace(found, resources=self.resources)

    def find_metering(self, repeat: int = 0) -> Metering:
        """Raises `DeviceError` for what was not recorded."""
        return _choose_repeat(self.meterings, repeat, f"schedule {self.digest} was not metered", self.failure)


def _choose_repeat(figures: Mapping[int, Figure], repeat: int, missing_text: str, failure: str) -> Figure:
    """The measurement of that number; before the first repeat the last one up to it. A repeat has no
    stand-in: one measurement must not count as several."""
    if repeat >= FIRST_REPEAT:
        number = repeat
    else:
        number = max((n for n in figures if n <= repeat), default=min(figures, default=-1))
    if number not in figures:
        raise DeviceError(failure or f"{missing_text}{' so often' if figures else ''} when this was recorded")
    return figures[number]


@dataclass(frozen=True, eq=False)
class Recording:
    """A whole file."""

    path: str
    origin: Origin
    operator_texts: tuple[str, ...]
    """The operators as canonical JSON, in the order they were first measured."""
    rows: tuple[RecordedRow, ...]

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The operators."""
        return tuple(operator_from_json(json.loads(text)) for text in self.operator_texts)

    @cached_property
    def by_digest(self) -> Mapping[str, RecordedRow]:
        """Rows by the digest of their schedule."""
        return {row.digest: row for row in self.rows}

    @property
    def gpu_uuids(self) -> frozenset[str]:
        """The UUIDs of the GPUs that were measured; none of a simulated device."""
        timings = (one.conditions.gpu for row in self.rows for one in row.timings.values())
        meterings = (one.conditions.gpu for row in self.rows for one in row.meterings.values())
        return frozenset(filter(None, (*timings, *meterings)))

    def find_rows(self, op: Operator) -> tuple[RecordedRow, ...]:
        """The rows of an operator. Raises `RecordError`, naming those that there are, where it has none."""
        if op not in self.operators:
            known = "; ".join(str(one).splitlines()[0] for one in self.operators) or "none at all"
            raise RecordError(f"{self.path} has no row of {str(op).splitlines()[0]}; it holds {known}")
        number = self.operators.index(op)
        return tuple(row for row in self.rows if row.operator == number)
