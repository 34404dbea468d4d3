"""A real GPU as the meter needs it: sensors are read in this process, the kernel runs in a worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.metering.meter import CompletedCalls
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import DeviceError


class KernelRunner(Protocol):
    """Calls a kernel back to back until `stop`, so that the GPU never idles in between."""

    def start(self, kernel: CompiledKernel) -> None:
        """Start to call the kernel; returns when the kernel runs."""

    def stop(self) -> CompletedCalls:
        """Stop soon, and report the calls."""


class NvmlBoard:
    """A `Board` of the meter. Raises `DeviceError` where the energy of the board is not that of the kernel
    alone (MIG)."""

    def __init__(
        self,
        sensors: GpuSensors,
        kernel_runner: KernelRunner,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if shared := sensors.explain_sharing():
            raise DeviceError(f"{shared}; nothing can be metered, latency can be timed")
        self._sensors, self._kernel_runner = sensors, kernel_runner
        self.now_s, self.wait = now, sleep
        self.averaging_s = sensors.averaging_s
        self.counter_mj = sensors.counter_mj
        self.power_w = sensors.power_w
        self.temperature_c = sensors.temperature_c
        self.clock_mhz = sensors.clock_mhz
        self.throttle = sensors.throttle
        self.power_cap_w = sensors.power_cap_w
        self.start = kernel_runner.start

    def stop(self) -> CompletedCalls:
        """Stop soon, and report the calls."""
        called = self._kernel_runner.stop()
        if called.count < 1:
            raise DeviceError(f"{self._sensors.name}: the kernel was not called once while it was metered")
        return called
