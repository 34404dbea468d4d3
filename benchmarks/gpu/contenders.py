"""Contenders of a comparison: each can be timed and metered, in turn, under the same rules."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from benchmarks.gpu.rotation import Slice
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Device, Metering, Timing
from ekc.devices.metering.meter import MeteringWindow
from ekc.devices.statistics import Difference, Interval, MeasuredValue, compare_pairwise
from ekc.errors import EkcError


class Contender(Protocol):
    """One way to compute an operator."""

    name: str

    def time(self, turn: int) -> Timing:
        """Latency of a call, warm."""

    def run(self, turn: int, seconds: float) -> Slice:
        """Sustained time and energy of a call, on a board that is hot from the contender before."""


@runtime_checkable
class HotDevice(Protocol):
    """A device that meters on a hot board."""

    def run_hot(self, kernel: CompiledKernel, *, seconds: float) -> MeteringWindow:
        """See `ekc.devices.metering.meter.run_hot`."""


@dataclass
class Ours:
    """A kernel of ekc on the device."""

    name: str
    device: Device
    kernel: CompiledKernel

    def time(self, turn: int) -> Timing:
        """See `Contender`."""
        return self.device.time(self.kernel, repeat=turn)

    def meter(self, turn: int, seconds: float) -> Metering:
        """See `Contender`."""
        return self.device.meter(self.kernel, seconds=seconds, repeat=turn)

    def run(self, turn: int, seconds: float) -> Slice:
        """See `Contender`. A recorded device has no board: its slice is the recorded timing and metering."""
        if isinstance(self.device, HotDevice):
            return Slice.from_window(self.device.run_hot(self.kernel, seconds=seconds))
        timing, metering = self.time(turn), self.meter(turn, seconds)
        seen = metering.conditions
        return Slice(
            latency_s=timing.latency_s,
            energy_j=metering.energy_j,
            power_w=metering.power_w,
            clock_mhz=seen.clock_mhz,
            temperature_c=seen.temperature_c,
            throttle=seen.throttle,
        )


def compute_ratio(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> Difference | None:
    """Ratio of the rival's figure to ours: above 1, ours is better. None where a measurement is missing."""
    if not ours or len(ours) != len(theirs):
        return None
    return compare_pairwise([_make_value(x) for x in theirs], [_make_value(x) for x in ours])


def _make_value(figure: Sequence[float]) -> MeasuredValue:
    value, low, high = figure
    return MeasuredValue(value, Interval(low, high))


def format_median(figures: Sequence[Sequence[float]], scale: float) -> str:
    """The median of the turns, as text."""
    return f"{scale * statistics.median(value for value, _, _ in figures):.4g}" if figures else "-"


def measure_in_turn(
    contenders: Sequence[Contender], turns: int, windows: int, window_s: float
) -> dict[str, Any]:
    """A B, B A, and so on: first latencies, then energies. By contender: figures turn by turn, each with its
    95 % interval as [value, low, high], and the problem, if any."""
    figures_by_name: dict[str, Any] = {
        one.name: {"latency_s": [], "energy_j": [], "problem": ""} for one in contenders
    }
    for turn in range(turns):
        for one in contenders[:: -1 if turn % 2 else 1]:
            _collect_figures(
                figures_by_name[one.name], lambda one=one, turn=turn: _describe_timing(one.time(turn))
            )
    for turn in range(windows):
        for one in contenders[:: -1 if turn % 2 else 1]:
            _collect_figures(
                figures_by_name[one.name],
                lambda one=one, turn=turn: _describe_metering(one.meter(turn, window_s)),
            )
    return figures_by_name


def _collect_figures(into: dict[str, Any], measure: Any) -> None:
    if into["problem"]:
        return
    try:
        figures = measure()
    except EkcError as problem:
        into["problem"] = str(problem)
        return
    except Exception as problem:
        # A library may raise anything (no memory, a lost GPU); other contenders are compared all the same.
        into["problem"] = f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}"
        return
    for name, value in figures.items():
        into[name] = [*into[name], value] if isinstance(into.get(name), list) else value


def _describe_timing(timing: Timing) -> dict[str, Any]:
    conditions, span = timing.conditions, timing.interval_s
    figure = (timing.latency_s, span.low, span.high)
    return {"latency_s": figure, "clock_mhz": conditions.clock_mhz, "method": timing.method}


def _describe_metering(metering: Metering) -> dict[str, Any]:
    conditions, span = metering.conditions, metering.energy_interval_j
    return {
        "energy_j": (metering.energy_j, span.low, span.high),
        "power_w": metering.power_w,
        "metered_clock_mhz": conditions.clock_mhz,
        "throttle": ", ".join(conditions.throttle),
        "temperature_c": conditions.temperature_c,
    }
