"""One real GPU: its worker, what it says of itself, and what can be read of it meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.clocks import SmClockControl
from ekc.devices.cuda.caller import RemoteKernelRunner
from ekc.devices.cuda.facts import GpuProperties
from ekc.devices.cuda.machine_code import explain_old_driver
from ekc.devices.cuda.messages import DescribeRequest
from ekc.devices.cuda.remote import RemoteWorker
from ekc.devices.cuda.watch import SensorPoller, SensorState
from ekc.devices.meter import Board, MeteringWindow, meter_kernel
from ekc.devices.nvml.board import KernelRunner, NvmlBoard
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import DeviceError
from ekc.forks import detach_in_children


@dataclass(eq=False)
class Gpu:
    """A GPU to be used by one thread at a time: hold `lock` from a question to its answer."""

    index: int
    remote: RemoteWorker
    properties: GpuProperties
    sensors: GpuSensors
    clocks: SmClockControl
    make_board: Callable[[GpuSensors, KernelRunner], Board] = NvmlBoard
    lock: Any = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        detach_in_children(self)

    def detach(self) -> None:
        """In a forked child: a thread that held the lock is not here."""
        self.lock = threading.RLock()

    @classmethod
    def connect(
        cls, index: int, remote: RemoteWorker, open_sensors: Callable[[str], GpuSensors], nvrtc: str
    ) -> Gpu:
        """Ask the worker what the GPU is, and find its sensors by its UUID.

        Raises `DeviceError` where there is none, or its driver is too old."""
        facts: GpuProperties = remote.query(DescribeRequest())
        check_driver(facts, nvrtc)
        found = open_sensors(facts.uuid)
        return cls(index, remote, facts, found, SmClockControl(found))

    def query(self, request: Any, fixed_mhz: int | None = None) -> tuple[Any, SensorState]:
        """The worker's answer, and what the sensors said meanwhile; at a clock, or as the driver chooses."""
        with self.lock, self._fix_clock(fixed_mhz):
            with SensorPoller(self.sensors) as watch:
                answer = self.remote.query(request)
            return answer, watch.read_state()

    def meter(
        self, kernel: CompiledKernel, call_s: float, seconds: float, fixed_mhz: int | None = None
    ) -> MeteringWindow:
        """Power of back-to-back calls; see `ekc.devices.meter`."""
        with self.lock, self._fix_clock(fixed_mhz):
            return meter_kernel(
                self.make_board(self.sensors, RemoteKernelRunner(self.remote)), kernel, call_s, seconds
            )

    def _fix_clock(self, mhz: int | None) -> AbstractContextManager[None]:
        return nullcontext() if mhz is None else self.clocks.fix_clock(mhz)


def check_driver(facts: GpuProperties, nvrtc: str) -> None:
    """`DeviceError` where the driver does not load what this NVRTC makes."""
    if reason := explain_old_driver(facts.driver_version, nvrtc):
        raise DeviceError(f"{facts.name}: its driver is {reason}")
