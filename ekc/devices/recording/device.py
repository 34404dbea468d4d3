"""A recording as a device: it returns the recorded measurements of a schedule."""

from __future__ import annotations

import re
from pathlib import Path

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Clocks, Metering, Timing
from ekc.devices.recording.reader import read_recording
from ekc.devices.recording.recorded_rows import RecordedRow, Recording
from ekc.errors import DeviceError, RecordError

TARGET_PREFIX = "recorded:"
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

    def time(self, kernel: CompiledKernel, *, repeat: int = 0) -> Timing:
        """Recorded timing of the kernel's schedule. Raises `DeviceError` where there is none."""
        return self._find_row(kernel).find_timing(repeat)

    def meter(self, kernel: CompiledKernel, *, seconds: float = 1.0, repeat: int = 0) -> Metering:
        """Recorded metering of the kernel's schedule, over the recorded window, whatever `seconds`."""
        return self._find_row(kernel).find_metering(repeat)

    def clocks(self) -> Clocks:
        """No clocks: a recording was made at one clock."""
        return Clocks(reason=f"{self.label} was recorded at {self.clock_regime} only")

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
