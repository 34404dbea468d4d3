"""The data of a tuning run as plain frozen values: trials, device, roofline bound, model cards, the
result.

The cost of measuring: device seconds and joules of a run, a lower bound.

A stored figure counts as if it had been measured now, so that a resumed run comes to the same sum and the
same decisions. Searching and compiling on the host are not counted.

First words of the status of a schedule that has no valid figures: "compile: ...", "wrong result: ...".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ekc.devices.device import Metering, Peaks, Timing
from ekc.devices.metering.meter import IDLE_PERIOD_S, WARM_UP_PERIOD_S
from ekc.devices.statistics import Interval, MeasuredValue
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.runtime.verify import UNSAFE_KERNEL, WRONG_RESULT
from ekc.tables import format_rounded

MIN_WARM_UP_S = 2 * WARM_UP_PERIOD_S
"""Warm-up seconds of a metering, at least: power must agree over two periods."""


@dataclass
class MeasurementCost:
    """Device time and energy. On a simulated device: the cost on a real one."""

    timing_s: float = 0.0
    """Seconds of kernel execution in timings."""
    metering_s: float = 0.0
    """Seconds of metering: window, warm-up and the measurement of idle power before."""
    joules: float = 0.0
    """Energy of the board in all measurements."""
    idle_w: float = 0.0
    """Idle power in watts of the last metering; 0 before the first."""

    def add_timing(self, timing: Timing, power_w: float) -> None:
        """Add one timing. Its power was not measured: the caller gives an upper bound."""
        seconds = timing.samples * timing.calls * timing.latency_s
        self.timing_s += seconds
        self.joules += seconds * power_w

    def add_metering(self, metering: Metering) -> None:
        """Add one metering: idle, warm-up and window."""
        self.metering_s += estimate_metering_s(metering.window_s)
        self.joules += metering.power_w * (metering.window_s + MIN_WARM_UP_S)
        self.joules += metering.idle_power_w * IDLE_PERIOD_S
        self.idle_w = metering.idle_power_w


def compute_break_even_calls(
    search_energy_j: float, best_j: float | None, other_j: float | None
) -> float | None:
    """Calls of the best kernel, not another, that save the search's energy; None if it saves none."""
    if best_j is None or other_j is None or best_j >= other_j:
        return None
    return search_energy_j / (other_j - best_j)


def estimate_metering_s(window_s: float) -> float:
    """Estimate the device seconds of a metering with a window of `window_s`."""
    return window_s + MIN_WARM_UP_S + IDLE_PERIOD_S


def compute_min_latency_s(op: Operator, flops: Any, peaks: Peaks) -> Any:
    """Compute the latency of the arithmetic alone. A multiply-add is two operations."""
    return flops / peaks.flops_by_type[get_arithmetic_type(op)]


def get_arithmetic_type(op: Operator) -> str:
    """Return the element type whose peak bounds an operator: that of its inputs. It is the accumulator's
    where the inputs are summed in another type than usual, which no tensor core does."""
    acc = op.computes[0].acc_dtype
    read = op.inputs[0].dtype if op.inputs else acc
    return read.name if acc.name == read.default_accumulator else acc.name


@dataclass(frozen=True)
class RooflineBound:
    """The lower bound on the latency of an operator on a device."""

    bound: str
    """"compute" or "memory"."""
    least_s: float
    """Least latency in seconds: the arithmetic as written, or the compulsory traffic, at the ceiling."""
    ceiling: float
    """Peak operations per second, or bytes per second."""
    unit: str
    """"FLOP/s", "OP/s" or "B/s"."""
    of: str
    """Element type of the arithmetic; "" for memory."""
    source: str
    """Source of the ceiling, such as "whitepaper"."""

    def __str__(self) -> str:
        """`arithmetic: 17.6 TFLOP/s of float32 (whitepaper)`."""
        source = f" ({self.source})" if self.source else ""
        if self.bound == "memory":
            return f"compulsory memory traffic: {self.ceiling / 1e9:,.0f} GB/s{source}"
        return f"arithmetic: {format_rounded(self.ceiling / 1e12, 3)} T{self.unit} of {self.of}{source}"


def compute_roofline_bound(op: Operator, peaks: Peaks) -> RooflineBound:
    """Compute the bound of an operator: by arithmetic or by memory, whichever takes longer."""
    compute_s = float(compute_min_latency_s(op, op.flops, peaks))
    memory_s = op.min_bytes / peaks.dram_bytes_per_s
    if compute_s < memory_s:
        return RooflineBound("memory", memory_s, peaks.dram_bytes_per_s, "B/s", "", peaks.source)
    of = get_arithmetic_type(op)
    unit = "OP/s" if of.startswith("int") else "FLOP/s"
    return RooflineBound("compute", compute_s, peaks.flops_by_type[of], unit, of, peaks.source)


INTERRUPTED = "interrupted"
"""Reason for the early end of a run: Ctrl-C."""
STOPPED = "stopped by the callback"
"""Reason for the early end of a run: the callback returned True."""


@dataclass(frozen=True)
class Trial:
    """One schedule with its figures. Latency, power and energy are per call of the operator."""

    schedule: Schedule
    structure: str
    """Name of the structure in the search space; "naive" for the baseline."""
    status: str
    """"ok", or the failure: "compile: ...", "wrong result: ...", "unsafe kernel: ...", "unchecked: ...",
    "device: ..."."""
    latency_s: float | None = None
    """Mean latency of the timings."""
    latency_interval_s: Interval | None = None
    power_w: float | None = None
    """Mean board power, metered or predicted."""
    energy_j: float | None = None
    """Energy: measured if `metered`, else predicted."""
    energy_interval_j: Interval | None = None
    """95 % confidence interval of the metered energy."""
    energies_j: tuple[MeasuredValue, ...] = ()
    """Energy of each metering, in the order of the requests."""
    in_turn: bool = False
    """Whether the finalists were metered in turn, so that `energies_j` of two of them are pairs."""
    metered: bool = False
    notes: tuple[str, ...] = ()
    """Notes of the meter on its figures, each once."""
    clock_mhz: float | None = None
    """SM clock of the last measurement."""
    throttle: tuple[str, ...] = ()
    """Throttle reasons of the last measurement."""
    round: int = 0
    """Round of the search, from 1; 0 for the baseline."""
    checked: str = ""
    """Verdict of executing the kernel and comparing its results; "" if it was not executed."""
    measured_elsewhere: str = ""
    """Conditions (device, compiler, driver) that the figures were measured under, if not those here."""

    @property
    def ok(self) -> bool:
        """Whether the kernel ran and, if it was checked, was correct."""
        return self.status == "ok"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values under the attribute names."""
        steps = [s.to_json() for s in self.schedule.steps]
        return {"schedule": steps, "digest": self.schedule.digest} | {
            **vars(self),
            "schedule": steps,
            "latency_interval_s": _interval_to_json(self.latency_interval_s),
            "energy_interval_j": _interval_to_json(self.energy_interval_j),
            "energies_j": [[m.value, m.interval.low, m.interval.high] for m in self.energies_j],
            "notes": list(self.notes),
            "throttle": list(self.throttle),
        }


def _interval_to_json(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]


@dataclass(frozen=True)
class DeviceInfo:
    """The device that the figures were measured on."""

    name: str
    simulated: bool
    label: str
    """Printed name: "a100 (simulated)"."""
    clock_regime: str = ""
    """Clock setting under which the figures were measured, such as "1410 MHz"."""
    arch: str = "sm_80"
    replayed: bool = False


@dataclass(frozen=True)
class ModelCard:
    """Accuracy of the energy model after one round, on the last kernels metered (at most
    `metering_policy.VERDICT_WINDOW`). Each was predicted before it was metered."""

    round: int
    """Round after which the accuracy was computed."""
    rows: int
    """Metered kernels that the model had learned from."""
    rank_correlation: float | None
    """Spearman correlation of predicted and metered energy; None below three metered kernels."""
    error: float | None
    """Median absolute relative error of the predicted energies."""
    constant_power_error: float | None
    """Median absolute relative error of the trivial predictor energy = latency x median power so far."""
    two_number_error: float | None
    """Median absolute relative error of the second trivial predictor: energy = P0 x latency + E0, both
    numbers fitted to the kernels metered so far."""
    latency_rank: float | None
    """Spearman correlation of latency and metered energy: the third trivial predictor."""
    share: float
    """Share of the timed kernels that is metered after this round."""
    quarantined: bool
    """Whether a line over the analytic prior replaces the model after this round."""


@dataclass(frozen=True)
class TuningData:
    """All data of a finished tuning run. `ekc.TuningResult` adds compiling, exporting and printing."""

    op: Operator
    device: DeviceInfo
    objective: str
    max_slowdown: float
    best: Trial
    """The least by the objective among kernels at most `max_slowdown` slower than the fastest."""
    fastest: Trial
    baseline: Trial
    """The naive schedule: one output element per thread, nothing staged."""
    trials: tuple[Trial, ...]
    """All schedules tried, failures included, in the order of trying."""
    seconds: float
    """Duration of the run on the host."""
    roof: RooflineBound
    """Roofline bound: arithmetic as written (with a transposed convolution's masked taps) or traffic."""
    model_cards: tuple[ModelCard, ...] = ()
    """Accuracy of the energy model, one card for each round with meterings."""
    refusals: Mapping[str, int] = field(default_factory=dict)
    """Genomes dropped as illegal after repair, by rule."""
    bred: int = 0
    """Genomes that went through repair, legal afterwards or not."""
    clock_front: tuple[Trial, ...] = ()
    """With clocks="search": the best schedule metered at other clocks. Not comparable with `best`."""
    clocks_note: str = ""
    """With clocks="search": why clocks were not searched, or what failed at one of them."""
    warm_start: str = ""
    """With `warm_start`: the measurements that were learned from, or why there were none."""
    stopped: str = ""
    """Why the run ended early; "" if all trials were used."""
    saving_interval: Interval | None = None
    """95 % interval of the share of energy that the best saves against the fastest (positive: it saves), by
    what a device's model does not know. None on a real device, and where the best is the fastest."""
    spent: MeasurementCost = field(default_factory=MeasurementCost)
    """Cost of measuring. On a simulated device: of a real one. Of a recording: of making it."""

    @property
    def trial_count(self) -> int:
        """Number of schedules tried."""
        return len(self.trials)

    @property
    def metered_count(self) -> int:
        """Number of schedules whose energy was measured."""
        return sum(t.metered for t in self.trials)

    @property
    def roofline_share(self) -> float:
        """Least latency on the roofline, divided by the latency of `best`."""
        assert self.best.latency_s is not None
        return self.roof.least_s / self.best.latency_s

    @property
    def break_even_calls(self) -> dict[str, float | None]:
        """Calls after which `best` saved the search's energy against "fastest", "baseline"; None: never."""
        joules, best_j = self.spent.joules, self.best.energy_j
        others = {"fastest": self.fastest.energy_j, "baseline": self.baseline.energy_j}
        return {name: compute_break_even_calls(joules, best_j, other_j) for name, other_j in others.items()}

    @property
    def pareto(self) -> tuple[Trial, ...]:
        """Pareto front of latency and energy among the metered trials, fastest first."""
        metered = [
            (t.latency_s, t.energy_j, t)
            for t in self.trials
            if t.ok and t.metered and t.latency_s is not None and t.energy_j is not None
        ]
        front: list[Trial] = []
        least_j = math.inf
        for _, energy_j, trial in sorted(metered, key=lambda row: row[:2]):
            if energy_j < least_j:
                front.append(trial)
                least_j = energy_j
        return tuple(front)

    def provenance(self) -> dict[str, str]:
        """Conditions and figures of the best kernel, for an exported file."""
        best = self.best
        figures = {
            "device": f"{self.device.label}, {self.device.clock_regime}",
            "objective": self.objective,
            "trials": f"{self.trial_count}, {self.metered_count} metered",
        }
        if best.latency_s is not None:
            figures["latency"] = f"{best.latency_s * 1e6:.2f} us"
        if best.energy_j is not None:
            how = "metered" if best.metered else "predicted"
            figures["energy"] = f"{format_rounded(best.energy_j * 1e3, 4)} mJ a call ({how})"
        return figures | {"result": best.checked or "not executed"}

    def to_json(self) -> dict[str, Any]:
        """One JSON object under the attribute names."""
        return {
            "operator": self.op.to_json(),
            # The label of a recording says that it is one.
            "device": {key: getattr(self.device, key) for key in ("name", "simulated", "label")},
            "clock_regime": self.device.clock_regime,
            "objective": self.objective,
            "max_slowdown": self.max_slowdown,
            "best": self.best.to_json(),
            "fastest": self.fastest.to_json(),
            "baseline": self.baseline.to_json(),
            "pareto": [t.to_json() for t in self.pareto],
            "trials": [t.to_json() for t in self.trials],
            "trial_count": self.trial_count,
            "metered_count": self.metered_count,
            "roofline_share": self.roofline_share,
            "roof": vars(self.roof),
            "model_cards": [vars(c) for c in self.model_cards],
            "refusals": dict(self.refusals),
            "bred": self.bred,
            "clock_front": [t.to_json() for t in self.clock_front],
            "clocks_note": self.clocks_note,
            "warm_start": self.warm_start,
            "seconds": self.seconds,
            "stopped": self.stopped,
            "spent": vars(self.spent),
            "break_even_calls": self.break_even_calls,
            "saving_interval": vars(self.saving_interval) if self.saving_interval else None,
        }


REJECTED_VERDICTS = (WRONG_RESULT, UNSAFE_KERNEL)
"""Status of a kernel that was executed and may not win."""
UNCHECKED_PREFIX = "unchecked"
"""Status of a kernel that could not be executed. It may not win either."""
COMPILE_FAILURE_PREFIX = "compile: "
"""Status of a schedule that the compiler refused."""
