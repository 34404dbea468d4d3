"""What a tuning run found, as plain frozen values.

Which peak of a device bounds an operator, and so what no kernel of it can beat.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ekc.devices.device import Peaks
from ekc.devices.statistics import Interval, MeasuredValue
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.search.data.cost import MeasurementCost, compute_break_even_calls

if TYPE_CHECKING:
    from ekc.runtime.kernel import Kernel


def compute_min_latency_s(op: Operator, flops: Any, peaks: Peaks) -> Any:
    """What so many operations take where nothing else does, each multiply-add counted as two."""
    return flops / peaks.flops_by_type[get_arithmetic_type(op)]


def get_arithmetic_type(op: Operator) -> str:
    """The element type whose peak bounds an operator: that of its inputs, or the accumulator's, where such
    inputs are summed in another than usual, which no faster unit does."""
    acc = op.computes[0].acc_dtype
    read = op.inputs[0].dtype if op.inputs else acc
    return read.name if acc.name == read.default_accumulator else acc.name


@dataclass(frozen=True)
class RooflineBound:
    """What bounds an operator on a device."""

    bound: str
    """"compute" or "memory"."""
    least_s: float
    """No kernel takes less: its arithmetic as written, or compulsory traffic, at the ceiling."""
    ceiling: float
    """Operations a second, or bytes."""
    unit: str
    """"FLOP/s", "OP/s" or "B/s"."""
    of: str
    """The element type of the arithmetic; "" of memory."""
    source: str
    """Who says so."""

    def __str__(self) -> str:
        """`arithmetic: 17.6 TFLOP/s of float32 (whitepaper)`."""
        source = f" ({self.source})" if self.source else ""
        if self.bound == "memory":
            return f"compulsory memory traffic: {self.ceiling / 1e9:,.0f} GB/s{source}"
        return f"arithmetic: {self.ceiling / 1e12:.3g} T{self.unit} of {self.of}{source}"


def compute_roofline_bound(op: Operator, peaks: Peaks) -> RooflineBound:
    """The lower of the two ceilings: that of arithmetic, or of memory."""
    compute_s, memory_s = (
        float(compute_min_latency_s(op, op.flops, peaks)),
        op.min_bytes / peaks.dram_bytes_per_s,
    )
    if compute_s < memory_s:
        return RooflineBound("memory", memory_s, peaks.dram_bytes_per_s, "B/s", "", peaks.source)
    of = get_arithmetic_type(op)
    unit = "OP/s" if of.startswith("int") else "FLOP/s"
    return RooflineBound("compute", compute_s, peaks.flops_by_type[of], unit, of, peaks.source)


INTERRUPTED = "interrupted"
"""Why a run ended early whose user would not wait."""
STOPPED = "stopped by the callback"
"""Why a run ended early whose callback asked for it."""


@dataclass(frozen=True)
class Trial:
    """One schedule and what is known of it. Latency, power and energy are per call of the operator."""

    schedule: Schedule
    structure: str
    """Which structure of the space it came from, in words; "naive" for the baseline."""
    status: str
    """"ok", or what went wrong: "compile: ...", "wrong result: ...", "unsafe kernel: ...", "unchecked: ...",
    "device: ..."."""
    latency_s: float | None = None
    latency_interval_s: Interval | None = None
    power_w: float | None = None
    energy_j: float | None = None
    """Measured where `metered`, predicted otherwise."""
    energy_interval_j: Interval | None = None
    energies_j: tuple[MeasuredValue, ...] = ()
    """Each metering, in the order in which they were asked for."""
    in_turn: bool = False
    """Whether the finalists took turns at the meter, so that `energies_j` of two of them are pairs."""
    metered: bool = False
    notes: tuple[str, ...] = ()
    """What the meter had to say of its figures, each once."""
    clock_mhz: float | None = None
    throttle: tuple[str, ...] = ()
    round: int = 0
    checked: str = ""
    """How the compiled kernel was executed and compared; "" where it was not."""
    measured_elsewhere: str = ""
    """The device, compiler and driver that the figures come from where they are not those here."""

    @property
    def ok(self) -> bool:
        """Whether it ran and, where it was checked, was right."""
        return self.status == "ok"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values under the attribute names."""
        return {
            "schedule": [s.to_json() for s in self.schedule.steps],
            "digest": self.schedule.digest,
            "structure": self.structure,
            "status": self.status,
            "latency_s": self.latency_s,
            "latency_interval_s": _interval_to_json(self.latency_interval_s),
            "power_w": self.power_w,
            "energy_j": self.energy_j,
            "energy_interval_j": _interval_to_json(self.energy_interval_j),
            "energies_j": [[m.value, m.interval.low, m.interval.high] for m in self.energies_j],
            "in_turn": self.in_turn,
            "metered": self.metered,
            "notes": list(self.notes),
            "clock_mhz": self.clock_mhz,
            "throttle": list(self.throttle),
            "round": self.round,
            "checked": self.checked,
            "measured_elsewhere": self.measured_elsewhere,
        }


def _interval_to_json(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]


@dataclass(frozen=True)
class DeviceInfo:
    """Which device the figures are of."""

    name: str
    simulated: bool
    label: str
    """What is printed: `a100 (simulated)`."""
    clock_regime: str = ""
    arch: str = "sm_80"
    """What kernels are compiled for."""
    replayed: bool = False
    """Whether the figures were recorded before, and nothing was measured."""


@dataclass(frozen=True)
class ModelCard:
    """How the energy model did up to one round, by the last kernels metered (`metering.WINDOW` at most), each
    predicted before it was."""

    round: int
    rows: int
    """Metered kernels it had learned from."""
    rank_correlation: float | None
    """Spearman, predicted against metered energy; None below three metered kernels."""
    error: float | None
    """Median absolute relative error of its energies."""
    constant_power_error: float | None
    """The same for the trivial predictor energy = latency x median power so far."""
    latency_rank: float | None
    """Spearman of latency alone against metered energy: the other trivial predictor."""
    share: float
    """Share of the timed kernels that is metered from here on."""
    quarantined: bool
    """Whether a line over the prior rules instead of the model from here on."""


@dataclass(frozen=True)
class TuningResult:
    """The outcome of `ekc.tune`."""

    op: Operator
    device: DeviceInfo
    objective: str
    max_slowdown: float
    best: Trial
    """Least by the objective among kernels at most `max_slowdown` slower than the fastest."""
    fastest: Trial
    baseline: Trial
    """One output element per thread, nothing staged."""
    trials: tuple[Trial, ...]
    """Everything tried, failures included, in the order of trying."""
    seconds: float
    roof: RooflineBound
    """What bounds the operator here (arithmetic as written, masked taps of a transposed convolution
    included, or compulsory traffic)."""
    model_cards: tuple[ModelCard, ...] = ()
    refusals: Mapping[str, int] = field(default_factory=dict)
    """Genomes dropped as illegal after repair, by rule."""
    bred: int = 0
    """Genomes that went through repair: those that `refusals` are a part of."""
    clock_front: tuple[Trial, ...] = ()
    """With clocks="search": the best schedule metered at other clocks. Not comparable with `best`."""
    clocks_note: str = ""
    """Why clocks were not searched, or what failed at one, where they were asked for."""
    warm_start: str = ""
    """What was learned from a record file beforehand, or why nothing was; "" where nobody asked."""
    stopped: str = ""
    """"" when all trials were used; otherwise why the run ended early."""
    spent: MeasurementCost = field(default_factory=MeasurementCost)
    """What the run cost on the device; on a simulated one what it would cost, of a recording what it did cost
    when that was made. The host is not counted."""

    @property
    def trial_count(self) -> int:
        """Schedules tried."""
        return len(self.trials)

    @property
    def metered_count(self) -> int:
        """Schedules whose energy was measured."""
        return sum(t.metered for t in self.trials)

    @property
    def roofline_share(self) -> float:
        """The least time that the operator could take over the latency of `best`."""
        assert self.best.latency_s is not None
        return self.roof.least_s / self.best.latency_s

    @property
    def break_even_calls(self) -> dict[str, float | None]:
        """Calls after which the energy that `best` saves has paid for the search, against "fastest" and
        "baseline"; None where it saves nothing."""
        others = {"fastest": self.fastest, "baseline": self.baseline}
        return {
            name: compute_break_even_calls(self.spent.joules, self.best.energy_j, other.energy_j)
            for name, other in others.items()
        }

    @property
    def pareto(self) -> tuple[Trial, ...]:
        """The latency-energy front of the metered trials, fastest first."""
        known = [
            t
            for t in self.trials
            if t.ok and t.metered and t.latency_s is not None and t.energy_j is not None
        ]
        front: list[Trial] = []
        for trial in sorted(known, key=lambda t: (t.latency_s or 0.0, t.energy_j or 0.0)):
            if not front or (trial.energy_j or 0.0) < (front[-1].energy_j or 0.0):
                front.append(trial)
        return tuple(front)

    def compile(self, name: str | None = None) -> Kernel:
        """The best schedule as a callable kernel, its functions called `name` instead of as the operator."""
        from ekc.runtime import kernel as compiling

        return compiling.compile(self.best.schedule, arch=self.device.arch, name=name)

    def export(self, folder: str | Path, name: str | None = None) -> tuple[Path, ...]:
        """Write the best kernel as `.cu`, header, JSON and CMake function; the paths written. `name` is what
        files and functions are called instead of as the operator, whose other shapes are called so too."""
        from ekc.codegen.export import export

        kernel = self.compile(name)
        return export(kernel.compiled, self.best.schedule, folder, provenance=self.provenance())

    def provenance(self) -> dict[str, str]:
        """Where the exported figures come from."""
        best = self.best
        figures = {
            "device": f"{self.device.label}, {self.device.clock_regime}",
            "objective": self.objective,
            "trials": f"{self.trial_count}, {self.metered_count} metered",
        }
        if best.latency_s is not None:
            figures["latency"] = f"{best.latency_s * 1e6:.2f} us"
        if best.energy_j is not None:
            figures["energy"] = (
                f"{best.energy_j * 1e3:.4g} mJ a call ({'metered' if best.metered else 'predicted'})"
            )
        return figures | {"result": best.checked or "not executed"}

    def summary(self) -> str:
        """One table: best, fastest, baseline; what was tried; that a simulated device is one."""
        from ekc.search.summary import format_summary

        return format_summary(self)

    def to_json(self) -> dict[str, Any]:
        """One JSON object under the attribute names."""
        return {
            "operator": self.op.to_json(),
            "device": {
                "name": self.device.name,
                "simulated": self.device.simulated,
                # Says of a replay that it is one.
                "label": self.device.label,
            },
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
        }
