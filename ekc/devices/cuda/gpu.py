"""One real GPU: its worker, what it says of itself, and what can be read of it meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.clocks import SmClocks
from ekc.devices.cuda.caller import RemoteCaller
from ekc.devices.cuda.facts import Facts
from ekc.devices.cuda.machine_code import too_old
from ekc.devices.cuda.messages import Describe
from ekc.devices.cuda.remote import Remote
from ekc.devices.cuda.watch import Seen, Watch
from ekc.devices.meter import Board, Window, meter
from ekc.devices.nvml.board import Caller, NvmlBoard
from ekc.devices.nvml.sensors import Sensors
from ekc.errors import DeviceError
from ekc.forks import abandon_in_children


@dataclass(eq=False)
class Gpu:
    """A GPU to be used by one thread at a time: hold `lock` from a question to its answer."""

    index: int
    remote: Remote
    facts: Facts
    sensors: Sensors
    clocks: SmClocks
    board: Callable[[Sensors, Caller], Board] = NvmlBoard
    lock: Any = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        abandon_in_children(self)

    def abandon(self) -> None:
        """In a forked child: a thread that held the lock is not here."""
        self.lock = threading.RLock()

    @classmethod
    def opened(cls, index: int, remote: Remote, sensors: Callable[[str], Sensors], nvrtc: str) -> Gpu:
        """Ask the worker what the GPU is, and find its sensors by its UUID.

        Raises `DeviceError` where there is none, or its driver is too old."""
        facts: Facts = remote.ask(Describe())
        check_driver(facts, nvrtc)
        found = sensors(facts.uuid)
        return cls(index, remote, facts, found, SmClocks(found))

    def ask(self, request: Any, mhz: int | None = None) -> tuple[Any, Seen]:
        """The worker's answer, and what the sensors said meanwhile; at a clock, or as the driver chooses."""
        with self.lock, self._at(mhz):
            with Watch(self.sensors) as watch:
                answer = self.remote.ask(request)
            return answer, watch.seen()

    def meter(self, kernel: CompiledKernel, call_s: float, seconds: float, mhz: int | None = None) -> Window:
        """Power of back-to-back calls; see `ekc.devices.meter`."""
        with self.lock, self._at(mhz):
            return meter(self.board(self.sensors, RemoteCaller(self.remote)), kernel, call_s, seconds)

    def _at(self, mhz: int | None) -> AbstractContextManager[None]:
        return nullcontext() if mhz is None else self.clocks.held(mhz)


def check_driver(facts: Facts, nvrtc: str) -> None:
    """`DeviceError` where the driver does not load what this NVRTC makes."""
    if reason := too_old(facts.driver_version, nvrtc):
        raise DeviceError(f"{facts.name}: its driver is {reason}")
