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

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import Metering, Peaks, Timing
from ekc.devices.metering.meter import IDLE_PERIOD_S, WARM_UP_PERIOD_S
from ekc.devices.statistics import Interval
from ekc.display import format_line
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.runtime.verify import UNSAFE_KERNEL, WRONG_RESULT
from ekc.search.data.explanation import EnergyExplanation
from ekc.search.data.library_result import LibraryResult
from ekc.search.data.trial import Trial, Trials, is_saving_shown
from ekc.tables import format_rounded
from ekc.version import __version__

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

    def __repr__(self) -> str:
        seconds = f"{self.metering_s:,.0f} s of metering, {self.timing_s:.2g} s of timing"
        return format_line(self, f"{self.joules:,.0f} J: {seconds}")

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

    def __repr__(self) -> str:
        return format_line(self, str(self))

    def __str__(self) -> str:
        """`arithmetic: 17.6 TFLOP/s of float32 (whitepaper)`."""
        source = f" ({self.source})" if self.source else ""
        if self.bound == "memory":
            return f"compulsory memory traffic: {self.ceiling / 1e9:,.0f} GB/s{source}"
        return f"arithmetic: {format_rounded(self.ceiling / 1e12, 3)} T{self.unit} of {self.of}{source}"


UNKNOWN_ROOF = RooflineBound("unknown", math.nan, math.nan, "", "", "")
"""The bound on a device whose ceilings are not known."""


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
    driver: str = ""
    """Version of the driver, or of the simulator."""
    data_policy: str = ""
    """How the inputs were filled."""
    peaks: Peaks | None = None
    """Ceilings of the roofline."""
    limits: LaunchLimits | None = None

    def __repr__(self) -> str:
        return format_line(self, f"{self.label}, {self.clock_regime or 'clocks unknown'}, {self.arch}")


@dataclass(frozen=True)
class ModelCard:
    """Accuracy of the energy model after one round, on the last kernels metered (at most
    `METERING.card_window`). Each was predicted before it was metered."""

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
    corrected: bool
    """Whether the boosted model corrects the prior of power after this round: it predicts the metered kernels
    no worse."""

    def __repr__(self) -> str:
        error = "unknown" if self.error is None else f"{self.error:.1%}"
        return format_line(self, f"round {self.round}: {self.rows} metered, median error {error}")


@dataclass(frozen=True)
class PredictionRecord:
    """Predictions and measurement of one metered kernel. Energies in joules per call."""

    digest: str
    """Digest of the schedule."""
    predicted_j: float
    """Energy by the power model, as the run used it."""
    std: float
    """Standard deviation of the log of `predicted_j`."""
    constant_j: float
    """Latency times the median power so far."""
    two_number_j: float
    """P0 times latency plus E0, both numbers fitted to the kernels metered so far."""
    latency_s: float
    measured_j: float
    measured_interval_j: Interval
    """95 % confidence interval of `measured_j`."""

    def __repr__(self) -> str:
        predicted, measured = (format_rounded(x * 1e3, 4) for x in (self.predicted_j, self.measured_j))
        return format_line(self, f"{self.digest}: {predicted} mJ predicted, {measured} mJ measured")


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
    trials: Trials
    """All schedules tried, failures included, in the order of trying."""
    seconds: float
    """Duration of the run on the host; NaN if it is unknown."""
    roof: RooflineBound
    """Roofline bound: arithmetic as written (with a transposed convolution's masked taps) or traffic."""
    model_cards: tuple[ModelCard, ...] = ()
    """Accuracy of the energy model, one card for each round with meterings."""
    refusals: Mapping[str, int] = field(default_factory=dict)
    """Genomes dropped as illegal after repair, by rule."""
    bred: int = 0
    """Genomes that went through repair, legal afterwards or not."""
    clock_front: Trials = field(default_factory=Trials)
    """With clocks="search": the best schedule metered at other clocks. Not comparable with `best`."""
    clocks_note: str = ""
    """With clocks="search": why clocks were not searched, or what failed at one of them."""
    stopped: str = ""
    """Why the run ended early; "" if all trials were used."""
    saving_interval: Interval | None = None
    """95 % interval of the share of energy that the best saves against the fastest (positive: it saves), by
    what a device's model does not know. None on a real device, and where the best is the fastest."""
    spent: MeasurementCost = field(default_factory=MeasurementCost)
    """Cost of measuring. On a simulated device: of a real one. Of a recording: of making it."""
    predictions: tuple[PredictionRecord, ...] = ()
    """Energies that were predicted before they were metered, in order."""
    seed: int | None = 0
    """Seed of the search; None if it is unknown."""
    finished: str = ""
    """Time of the end of the run: UTC, ISO 8601."""
    toolchain: str = ""
    """Versions of NVRTC and of the generator, from `codegen.generate.describe_toolchain`."""
    ekc_version: str = __version__
    library: LibraryResult | None = None
    """With contenders=("library",): the best kernel of cuBLASLt or cuDNN, measured beside `best`."""
    library_note: str = ""
    """With contenders=("library",): why no library was measured."""
    user_space: str = ""
    """With space=[...]: a description of the space, which the user wrote; "" for that of the rules."""
    found: str = ""
    """With evolve=True: the structure of `best` and the edits that made it; "" where rules made it."""
    features: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    """[trials, `cost_model.feature_table.FEATURES`]: features of the trials, as the models see them."""
    explanation: EnergyExplanation | None = None
    """Energies of `best` and `fastest` by the boosted model; None where it was not used."""

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
        """Calls after which `best` saved the search's energy against "fastest", "baseline"; None: never, or
        the meter shows no saving."""
        joules, best = self.spent.joules, self.best
        others = {"fastest": self.fastest, "baseline": self.baseline}
        return {
            name: compute_break_even_calls(joules, best.energy_j, other.energy_j)
            if is_saving_shown(best, other)
            else None
            for name, other in others.items()
        }

    @property
    def pareto(self) -> Trials:
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
        return Trials(front)

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
            "seed": self.seed,
            "finished": self.finished,
            "toolchain": self.toolchain,
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
            "library": self.library.to_json() if self.library else None,
            "library_note": self.library_note,
            "seconds": self.seconds,
            "stopped": self.stopped,
            "user_space": self.user_space,
            "found": self.found,
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
