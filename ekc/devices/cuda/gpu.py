"""One real GPU: its worker, what it says of itself, and what can be read of it meanwhile."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Protocol

from ekc.devices.cuda.driver import version_text
from ekc.devices.cuda.facts import Facts
from ekc.devices.cuda.messages import Describe
from ekc.devices.cuda.remote import Remote
from ekc.errors import DeviceError


class Sensors(Protocol):
    """What a measurement notes of a GPU."""

    def temperature_c(self) -> float:
        """Die temperature."""

    def clock_mhz(self) -> float:
        """SM clock now."""

    def throttle(self) -> tuple[str, ...]:
        """Reasons why the clock is lower than asked, if any."""


@dataclass(frozen=True)
class Seen:
    """Clock, temperature and throttle reasons around a measurement."""

    clock_mhz: float = 0.0
    """The lower of before and after; 0 where nothing can be read."""
    temperature_c: float = 0.0
    throttle: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gpu:
    """A GPU to be used by one thread at a time: hold `lock` from a question to its answer."""

    index: int
    remote: Remote
    facts: Facts
    sensors: Sensors | None
    lock: Any = field(default_factory=threading.RLock)

    @classmethod
    def opened(cls, index: int, remote: Remote, sensors: Sensors | None, nvrtc: str) -> Gpu:
        """Ask the worker what the GPU is. `DeviceError` where there is none, or its driver is too old."""
        facts: Facts = remote.ask(Describe())
        check_driver(facts, nvrtc)
        return cls(index, remote, facts, sensors)

    def ask(self, request: Any) -> tuple[Any, Seen]:
        """The worker's answer, and what the sensors said before and after."""
        with self.lock:
            before = self._look()
            answer = self.remote.ask(request)
            after = self._look()
        throttle = tuple(sorted({*before.throttle, *after.throttle}))
        return answer, Seen(min(before.clock_mhz, after.clock_mhz), after.temperature_c, throttle)

    def _look(self) -> Seen:
        if self.sensors is None:
            return Seen()
        return Seen(self.sensors.clock_mhz(), self.sensors.temperature_c(), self.sensors.throttle())


def check_driver(facts: Facts, nvrtc: str) -> None:
    """Machine code of one CUDA major version runs on every driver of that version or a later one."""
    needed = int(nvrtc.split(".")[0])
    if facts.driver_version < 1000 * needed:
        raise DeviceError(
            f"{facts.name}: its driver is for CUDA {version_text(facts.driver_version)}, too old for the "
            f"machine code of NVRTC {nvrtc}: update the driver to one for CUDA {needed}.0 or later"
        )
