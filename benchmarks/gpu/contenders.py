"""What is compared: things that can be timed and metered, in turn, under the same rules."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.base import Device, Metering, Timing
from ekc.devices.interval import student_t
from ekc.errors import EkcError


class Contender(Protocol):
    """One way to compute an operator."""

    name: str

    def time(self, turn: int) -> Timing:
        """Latency of a call, warm."""

    def meter(self, turn: int, seconds: float) -> Metering:
        """Energy of a call, back to back."""


@dataclass
class Ours:
    """A kernel of ekc on the device."""

    name: str
    device: Device
    kernel: CompiledKernel

    def time(self, turn: int) -> Timing:
        """See `Contender`."""
        return self.device.time(self.kernel, draw=turn)

    def meter(self, turn: int, seconds: float) -> Metering:
        """See `Contender`."""
        return self.device.meter(self.kernel, seconds=seconds, draw=turn)


@dataclass(frozen=True)
class Ratio:
    """Geometric mean of a ratio over turns, and its 95 % interval; no interval of fewer than three turns."""

    mean: float
    low: float
    high: float

    @property
    def counts(self) -> bool:
        """Whether there is a difference beyond what the turns scatter."""
        return not self.low <= 1.0 <= self.high


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio | None:
    """theirs / ours, turn by turn: above 1, ours is the better one. None where a turn is missing."""
    if not ours or len(ours) != len(theirs):
        return None
    logs = [math.log(b / a) for a, b in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(logs)
    if len(logs) < 3:
        return Ratio(math.exp(mean), 0.0, math.inf)
    half = student_t(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def interleaved(contenders: Sequence[Contender], turns: int, windows: int, window_s: float) -> dict[str, Any]:
    """A B A B: first latencies, then energies. By contender: figures turn by turn, and what went wrong."""
    found: dict[str, Any] = {
        one.name: {"latency_s": [], "energy_j": [], "power_w": [], "problem": ""} for one in contenders
    }
    for turn in range(turns):
        for one in contenders:
            _note(found[one.name], lambda one=one, turn=turn: _timed(one.time(turn)))
    for turn in range(windows):
        for one in contenders:
            _note(found[one.name], lambda one=one, turn=turn: _metered(one.meter(turn, window_s)))
    return found


def _note(into: dict[str, Any], measure: Any) -> None:
    if into["problem"]:
        return
    try:
        figures = measure()
    except EkcError as problem:
        into["problem"] = str(problem)
        return
    for name, value in figures.items():
        into[name] = [*into[name], value] if isinstance(into.get(name), list) else value


def _timed(timing: Timing) -> dict[str, Any]:
    told = timing.conditions
    return {"latency_s": timing.latency_s, "clock_mhz": told.clock_mhz, "method": timing.method}


def _metered(metering: Metering) -> dict[str, Any]:
    told = metering.conditions
    return {
        "energy_j": metering.energy_j,
        "power_w": metering.power_w,
        "metered_clock_mhz": told.clock_mhz,
        "throttle": ", ".join(told.throttle),
        "temperature_c": told.temperature_c,
    }
