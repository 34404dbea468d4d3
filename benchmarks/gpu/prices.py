"""Device seconds of a visit: a simulated GPU that measures at the prices of an H100, on a virtual clock.

The prices are those of the first visit (recordings/h100): seconds of the host and of the GPU together. The
clock is a file, so that it goes on after a process was killed, and the log beside it has a line for each
measurement. Checks have prices too; compilers of `library` take their real time. Other work is free.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.run_log import append_line, read_log
from benchmarks.gpu import __main__ as kit_program
from benchmarks.gpu import library
from benchmarks.gpu.contenders import SLICE_PRICE_S, SLICE_S
from benchmarks.gpu.kit import Kit
from ekc import devices
from ekc.codegen.compiled import CompiledKernel, digest_kernel
from ekc.devices.device import Metering, Timing
from ekc.devices.metering.meter import MeteringWindow
from ekc.devices.simulated.device import SimulatedDevice
from ekc.devices.simulated.specs import GpuSpec
from ekc.search.loop.finals import Finals

TIMING_S, METERING_S = 0.09, 2.2
"""Seconds of a timing, and of a metering beside its window."""
TRIAL_S = 0.55
"""Seconds of a trial of `tune`: breeding and compiling on 16 cores, and the timing."""
CHECK_S = 40.0 / 348
"""Seconds of a kernel of `check`, executed and compared, on 16 cores."""
FINALIST_S = 3.0
"""Seconds to check a finalist of `tune`."""
LOG = ".log"
"""Ending of the file of measurements beside the clock."""


class VirtualClock:
    """Seconds and the number of payments, in a file that outlives the process. One process pays at a time."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(16))
        self._log = path.with_name(path.name + LOG)
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 16)

    def _read(self) -> tuple[float, float]:
        seconds, payments = struct.unpack("dd", self._memory)
        return seconds, payments

    def now(self) -> float:
        """Seconds since the file was made."""
        return self._read()[0]

    def count_payments(self) -> int:
        """Payments since the file was made."""
        return int(self._read()[1])

    def pay(self, seconds: float) -> None:
        """Let seconds pass."""
        before, payments = self._read()
        self._memory[:] = struct.pack("dd", before + seconds, payments + 1)

    def note(self, *measurement: Any) -> None:
        """Write what is measured into the log."""
        append_line(self._log, measurement)

    def read_log(self) -> list[tuple[Any, ...]]:
        """Measurements, oldest first. A line that a kill cut short is left out."""
        return [tuple(measurement) for measurement in read_log(self._log)]


class PricedDevice(SimulatedDevice):
    """A simulated device that lets the clock go on."""

    def __init__(self, spec: GpuSpec, clock: VirtualClock, part: str) -> None:
        super().__init__(spec)
        self._clock, self._part = clock, part

    def time(self, kernel: CompiledKernel, *, repeat: int = 0) -> Timing:
        """See `SimulatedDevice`."""
        self._clock.note(self._part, "timing", digest_kernel(kernel), repeat)
        self._clock.pay(TRIAL_S if self._part == "tune" and repeat == 0 else TIMING_S)
        return super().time(kernel, repeat=repeat)

    def meter(self, kernel: CompiledKernel, *, seconds: float = 1.0, repeat: int = 0) -> Metering:
        """See `SimulatedDevice`."""
        self._clock.note(self._part, "metering", digest_kernel(kernel), repeat, seconds)
        self._clock.pay(METERING_S + seconds)
        return super().meter(kernel, seconds=seconds, repeat=repeat)

    def run_hot(self, kernel: CompiledKernel, *, seconds: float = 0.5) -> MeteringWindow:
        """See `SimulatedDevice`."""
        self._clock.note(self._part, "slice")
        self._clock.pay(SLICE_PRICE_S - SLICE_S + seconds)
        return super().run_hot(kernel, seconds=seconds)


def run_call(clock: VirtualClock, words: Sequence[str]) -> int:
    """Run one call of the kit, its part first among the words, on the virtual clock; its exit status. Within
    this process every simulated device has prices."""
    real, part = devices.open, words[0]

    def open_priced(target: str = "auto") -> Any:
        device = real(target)
        return PricedDevice(device._spec, clock, part) if type(device) is SimulatedDevice else device

    devices.open = open_priced
    _add_price(Kit, "judge", clock, CHECK_S)
    _add_price(Finals, "_execute", clock, FINALIST_S)
    _add_price(library, "_run_program", clock)
    return kit_program.main(words, clock.now)


def _add_price(owner: Any, name: str, clock: VirtualClock, price_s: float | None = None) -> None:
    """Let each call of a function take its price; without one, its real time."""
    real: Callable[..., Any] = getattr(owner, name)

    def paid(*arguments: Any) -> Any:
        began = time.monotonic()
        try:
            return real(*arguments)
        finally:
            clock.pay(time.monotonic() - began if price_s is None else price_s)

    setattr(owner, name, paid)


if __name__ == "__main__":
    raise SystemExit(run_call(VirtualClock(Path(sys.argv[1])), sys.argv[2:]))
