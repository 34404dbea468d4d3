"""The search of clocks on a device: which kernels are kept, measuring them at clocks, the plan, the front.

It follows the search of schedules, of one operator or of every layer of a model. Figures pass the record
store, so a run that was killed resumes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import POWER_CAP, Metering, Timing
from ekc.devices.statistics import Interval, MeasuredValue
from ekc.errors import DeviceError
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.search.clocks.choose import KernelFront, ModelFronts, make_plan
from ekc.search.clocks.clock_model import ClockReading
from ekc.search.clocks.clock_search import (
    ClockBoard,
    ClockKernel,
    ClockLayer,
    ClockSearch,
    make_reading,
)
from ekc.search.clocks.plan import ClockPlan
from ekc.search.data.defaults import CLOCK_SEARCH, MEASURING
from ekc.search.data.result import TuningData, estimate_metering_s
from ekc.search.data.trial import Trial, Trials
from ekc.search.loop.measure import MeasurementFailure, Measurer

FIRST_CLOCK_REPEAT = 10
"""Repeat number before the first metering of a search of clocks: those of trials and finals are smaller."""
MeasurementCallback = Callable[[Schedule, Timing, Metering | None], None]


@dataclass(frozen=True)
class SearchedLayer:
    """An operator whose schedules were searched at the default clock."""

    name: str
    op: Operator
    calls: Mapping[str, int]
    """Calls in one pass of the model, by phase ("prefill", "decode")."""
    fastest: Trial
    best: Trial
    trials: tuple[Trial, ...]
    """Trials that may be kept; those whose results were not checked, or that were not metered, are not."""

    @classmethod
    def from_result(cls, name: str, calls: Mapping[str, int], result: TuningData) -> SearchedLayer:
        """The layer of a finished tuning run."""
        return cls(name, result.op, calls, result.fastest, result.best, tuple(result.trials))

    def keep_trials(self) -> tuple[Trial, ...]:
        """The fastest, the best, and those of least energy per call, `kept_kernels` at most."""
        checked = [t for t in self.trials if t.ok and t.metered and t.checked]
        ranked = sorted(checked, key=lambda t: (t.energy_j or math.inf, t.schedule.digest))
        first = [t for t in (self.fastest, self.best) if t.ok and t.metered]
        kept = {t.schedule.digest: t for t in (*first, *ranked)}
        return tuple(kept.values())[: CLOCK_SEARCH.kept_kernels]

    def get_role(self, trial: Trial) -> str:
        """Role of a trial at the default clock, as `KernelFront.role`."""
        digest = trial.schedule.digest
        named = (("fastest", self.fastest), ("best", self.best))
        return " and ".join(name for name, t in named if t.schedule.digest == digest) or "front"


@dataclass
class ClockStage:
    """Searches clocks for tuned layers on one device. Call `run` once; what was measured before an exception
    stays."""

    layers: Sequence[SearchedLayer]
    measurer: Measurer
    """At the default clock."""
    get_kernel: Callable[[Schedule], CompiledKernel]
    max_slowdown: float
    seed: int = 0
    can_continue: Callable[[], bool] = lambda: True
    on_measured: MeasurementCallback = lambda schedule, timing, metering: None
    note: str = field(default="", init=False)
    """Why clocks were not searched, or what failed first at one of them; "" where nothing did."""
    search: ClockSearch | None = field(default=None, init=False)
    _kept: list[tuple[Trial, ...]] = field(default_factory=list, init=False)
    """Kept trials of each layer."""
    _measurers: dict[int, Measurer] = field(default_factory=dict, init=False)
    """Measurers at other clocks than the default, by MHz."""
    _metering_s_before: float = field(default=0.0, init=False)
    _max_metering_s: float = field(default=math.inf, init=False)

    @property
    def metering_s(self) -> float:
        """Metered seconds that the search of clocks took."""
        return self.measurer.cost.metering_s - self._metering_s_before if self.search else 0.0

    def run(self) -> None:
        """Search clocks, if they can be set. At most `metered_share` of the run's metered seconds is used, or
        `min_meterings` meterings."""
        spent_s = self._metering_s_before = self.measurer.cost.metering_s
        clocks = self.measurer.device.clocks()
        kept = self._kept = [layer.keep_trials() for layer in self.layers]
        if not clocks.mhz:
            self.note = f"not searched: {clocks.reason}"
            return
        if not all(kept):
            self.note = "not searched: no kernel was metered at the default clock"
            return
        layers = tuple(
            self._make_layer(layer, trials) for layer, trials in zip(self.layers, kept, strict=True)
        )
        board = self._make_board(clocks.mhz, kept)
        self.search = ClockSearch(layers, board, self, self.max_slowdown, self.seed)
        least_s = CLOCK_SEARCH.min_meterings * estimate_metering_s(MEASURING.final_window_s)
        share = CLOCK_SEARCH.metered_share
        self._max_metering_s = spent_s + max(least_s, share / (1 - share) * spent_s)
        self.search.run()

    def time(self, layer: int, kernel: int, mhz: int) -> ClockReading | None:
        """See `ClockMeter`."""
        schedule = self._kept[layer][kernel].schedule
        timing = self._time(schedule, mhz, FIRST_CLOCK_REPEAT)
        if timing is None:
            return None
        self.on_measured(schedule, timing, None)
        return _make_clock_reading(timing)

    def meter(self, layer: int, kernel: int, mhz: int, repeat: int) -> ClockReading | None:
        """See `ClockMeter`."""
        schedule, number = self._kept[layer][kernel].schedule, FIRST_CLOCK_REPEAT + repeat
        timing = self._time(schedule, mhz, number)
        if timing is None:
            return None
        get_kernel = partial(self.get_kernel, schedule)
        metering = self._measurers[mhz].meter(schedule, get_kernel, MEASURING.final_window_s, number)
        if isinstance(metering, MeasurementFailure):
            self._add_note(mhz, metering.status)
            return None
        self.on_measured(schedule, timing, metering)
        return _make_clock_reading(timing, metering)

    def can_meter(self) -> bool:
        """See `ClockMeter`."""
        next_s = estimate_metering_s(MEASURING.final_window_s)
        return self.measurer.cost.metering_s + next_s <= self._max_metering_s

    def _time(self, schedule: Schedule, mhz: int, repeat: int) -> Timing | None:
        """Time a schedule at a clock; None after a failure, which is noted."""
        try:
            if mhz not in self._measurers:
                device = self.measurer.device.at_clock(mhz)
                own = self.measurer
                self._measurers[mhz] = Measurer(device, own.store, own.cost, own.observers)
        except DeviceError as problem:
            self._add_note(mhz, f"device: {problem}")
            return None
        timing = self._measurers[mhz].time(schedule, partial(self.get_kernel, schedule), repeat)
        if isinstance(timing, MeasurementFailure):
            self._add_note(mhz, timing.status)
            return None
        return timing

    def _add_note(self, mhz: int, reason: str) -> None:
        self.note = self.note or f"at {mhz} MHz: {reason}"

    def make_fronts(self) -> ModelFronts | None:
        """The figures of all kernels over clocks; None where clocks were not searched."""
        if self.search is None or not self.search.has_moved:
            return None
        return self.search.make_fronts()

    def make_plan(self) -> ClockPlan | None:
        """The clock plan; None where clocks were not searched."""
        fronts = self.make_fronts()
        return None if fronts is None else make_plan(fronts, self.max_slowdown)

    def make_clock_front(self) -> Trials:
        """The best schedule of the first layer over clocks: those metered, and some predicted between."""
        fronts = self.make_fronts()
        if fronts is None:
            return Trials()
        best, digest = self.layers[0].best, self.layers[0].best.schedule.digest
        kernel = next((k for k in fronts.layers[0].kernels if k.digest == digest), None)
        if kernel is None:
            return Trials()
        count = len(fronts.clocks_mhz)
        picks = np.linspace(0, count - 1, min(count, CLOCK_SEARCH.front_clocks)).round().astype(int).tolist()
        shown = sorted({*picks, *(n for n in range(count) if kernel.is_metered[n])})
        return Trials(_make_trial(best, kernel, n, fronts.clocks_mhz[n]) for n in shown)

    def _make_board(self, clocks_mhz: tuple[int, ...], kept: Sequence[Sequence[Trial]]) -> ClockBoard:
        device = self.measurer.device
        default = max((t.clock_mhz for trials in kept for t in trials if t.clock_mhz), default=clocks_mhz[-1])
        return ClockBoard(
            device.name,
            device.simulated,
            tuple(sorted(clocks_mhz)),
            float(default),
            device.peaks.board_power_w,
        )

    def _make_layer(self, layer: SearchedLayer, trials: Sequence[Trial]) -> ClockLayer:
        idle_w = self.measurer.cost.idle_w or None
        kernels = tuple(
            ClockKernel(t.schedule.digest, layer.get_role(t), (_read_trial(t, idle_w),)) for t in trials
        )
        return ClockLayer(layer.name, layer.op.digest, dict(layer.calls), kernels)


def _make_clock_reading(timing: Timing, metering: Metering | None = None) -> ClockReading:
    last = (metering or timing).conditions
    clock = last.clock_mhz if math.isfinite(last.clock_mhz) else timing.conditions.clock_mhz
    return make_reading(
        clock,
        MeasuredValue(timing.latency_s, timing.interval_s),
        None if metering is None else MeasuredValue(metering.power_w, metering.power_interval_w),
        None if metering is None else metering.idle_power_w,
        POWER_CAP in last.throttle,
    )


def _read_trial(trial: Trial, idle_w: float | None) -> ClockReading:
    """The reading of a metered trial at the default clock: means over its measurements."""
    assert trial.latency_s is not None
    assert trial.energy_j is not None
    assert trial.power_w is not None
    latency = MeasuredValue(
        trial.latency_s, trial.latency_interval_s or Interval(trial.latency_s, trial.latency_s)
    )
    watts, energy = trial.power_w, trial.energy_interval_j
    low, high = (energy.low, energy.high) if energy else (trial.energy_j, trial.energy_j)
    power = MeasuredValue(watts, Interval(watts * low / trial.energy_j, watts * high / trial.energy_j))
    is_capped, count = POWER_CAP in trial.throttle, max(1, len(trial.energies_j))
    return make_reading(trial.clock_mhz or math.nan, latency, power, idle_w, is_capped, count)


def _make_trial(best: Trial, kernel: KernelFront, number: int, mhz: int) -> Trial:
    """The best schedule at a clock, metered or predicted."""
    latency, energy = kernel.latency_s[number], kernel.energy_j[number]
    return replace(
        best,
        latency_s=latency.value,
        latency_interval_s=Interval(latency.low, latency.high),
        power_w=energy.value / latency.value,
        energy_j=energy.value,
        energy_interval_j=Interval(energy.low, energy.high),
        energies_j=(),
        in_turn=False,
        metered=kernel.is_metered[number],
        notes=(),
        clock_mhz=float(mhz),
        throttle=(),
        metering_s=None,
    )
