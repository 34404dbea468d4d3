"""The data of a tuned model as plain frozen values: its layers with their results, and the sums over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ekc.display import format_line, shorten
from ekc.ir.lowering.lower import derive_launches
from ekc.models.model import Model, ModelLayer
from ekc.search.clocks.plan import ClockPlan
from ekc.search.data.result import DeviceInfo, MeasurementCost
from ekc.search.data.trial import describe_trial
from ekc.search.tuning_result import TuningResult
from ekc.tables import count_nouns
from ekc.version import __version__

NOT_TUNED = "not tuned"
"""Reason of a layer that had no trial before Ctrl-C."""


@dataclass(frozen=True, repr=False)
class TunedLayer:
    """A layer of a model with its result, or the reason why it has none."""

    layer: ModelLayer
    result: TuningResult | None
    failure: str = ""
    """Why there is no result, in one line; "" if there is one."""

    @property
    def short_failure(self) -> str:
        """The reason in a few words."""
        return self.failure if self.failure.startswith(NOT_TUNED) else "failed" if self.failure else ""

    def to_json(self) -> dict[str, Any]:
        """Name, count and uses, and the result or the reason, as plain JSON values."""
        uses = [vars(use) for use in self.layer.uses]
        found = {"reason": self.failure} if self.result is None else self.result.to_json()
        return {"name": self.layer.name, "count": self.layer.count, "uses": uses} | found

    def __repr__(self) -> str:
        found = self.failure if self.result is None else describe_trial(self.result.best)
        return format_line(
            self, f"{shorten(self.layer.name, 40)}, {count_nouns(self.layer.count, 'call')}: {found}"
        )


@dataclass(frozen=True)
class ModelTotal:
    """The sum over the calls of the layers in one pass of a model: latency in seconds, energy in joules."""

    model: str
    calls: int
    launches: int
    """Kernels that are launched: an operator whose sum is cut over blocks takes two."""
    latency_s: float
    energy_j: float | None
    """None where a layer has no energy, as with the objective latency on a device without a meter."""
    fastest_s: float
    """Latency with the fastest kernel of each layer."""
    fastest_j: float | None
    naive_s: float | None
    """Latency with the naive kernels; None where one of them failed."""
    naive_j: float | None
    roofline_s: float
    """Least latency on the roofline; NaN where the ceilings of the device are not known."""
    missing: tuple[str, ...]
    """Layers without a kernel, each with the reason in brackets. The sums lack them."""

    @property
    def roofline_share(self) -> float:
        """Least latency on the roofline, divided by the latency."""
        return self.roofline_s / self.latency_s

    def __repr__(self) -> str:
        energy = "" if self.energy_j is None else f", {self.energy_j:.4g} J"
        return format_line(
            self, f"{self.model}: {count_nouns(self.calls, 'call')}, {self.latency_s:.4g} s{energy}"
        )


@dataclass(frozen=True)
class ModelData:
    """All data of a tuned model. `ModelResult` adds exporting and printing."""

    model: Model
    layers: tuple[TunedLayer, ...]
    """Every layer of the model, in its order."""
    device: DeviceInfo
    objective: str
    max_slowdown: float
    trials: int
    """Trials of all layers, at most."""
    seconds: float
    """Duration on the host."""
    seed: int
    stopped: str = ""
    """Why the search ended early; "" if all trials were used."""
    plan: ClockPlan | None = None
    """With clocks="search": one clock for the model, and for each layer the kernel, of least energy within
    `max_slowdown`; None where clocks were not searched. The layers' `best` are those at the default clock."""
    clocks_note: str = ""
    """With clocks="search": why clocks were not searched, or what failed at one of them."""
    clocks_metering_s: float = 0.0
    clocks_joules: float = 0.0
    """Metered seconds and joules of the search of clocks, parts of `spent`."""
    turns: tuple[str, ...] = ()
    """Names of the layers in the order of their rounds."""
    ekc_version: str = __version__

    @property
    def results(self) -> tuple[TuningResult, ...]:
        """The results of the layers that have one."""
        return tuple(x.result for x in self.layers if x.result is not None)

    @property
    def trial_count(self) -> int:
        """Number of schedules tried, over all layers."""
        return sum(result.trial_count for result in self.results)

    @property
    def metered_count(self) -> int:
        """Number of schedules whose energy was measured, over all layers."""
        return sum(result.metered_count for result in self.results)

    @property
    def spent(self) -> MeasurementCost:
        """Cost of measuring all layers."""
        costs = [result.spent for result in self.results]
        return MeasurementCost(
            sum(c.timing_s for c in costs),
            sum(c.metering_s for c in costs) + self.clocks_metering_s,
            sum(c.joules for c in costs) + self.clocks_joules,
        )

    @cached_property
    def totals(self) -> tuple[ModelTotal, ...]:
        """The sums of each model that the layers belong to: one, but for a layer file of several."""
        models = dict.fromkeys(use.model for x in self.layers for use in x.layer.uses)
        return tuple(self._sum_model(model) for model in models)

    def _sum_model(self, model: str) -> ModelTotal:
        used = [
            (x.result, use.count)
            for x in self.layers
            for use in x.layer.uses
            if use.model == model and x.result is not None
        ]
        missing = tuple(
            f"{use.name} ({x.short_failure})"
            for x in self.layers
            for use in x.layer.uses
            if use.model == model and x.result is None
        )
        return ModelTotal(
            model=model,
            calls=sum(count for _, count in used),
            launches=sum(len(derive_launches(r.best.schedule.program)) * count for r, count in used),
            latency_s=_sum_figures(used, lambda r: r.best.latency_s) or 0.0,
            energy_j=_sum_figures(used, lambda r: r.best.energy_j),
            fastest_s=_sum_figures(used, lambda r: r.fastest.latency_s) or 0.0,
            fastest_j=_sum_figures(used, lambda r: r.fastest.energy_j),
            naive_s=_sum_figures(used, lambda r: r.baseline.latency_s),
            naive_j=_sum_figures(used, lambda r: r.baseline.energy_j),
            roofline_s=_sum_figures(used, lambda r: r.roof.least_s) or 0.0,
            missing=missing,
        )

    def to_json(self) -> dict[str, Any]:
        """One JSON object: layers with their results, layers that failed, sums, and what is not covered."""
        return {
            "model": self.model.name,
            "layers": [x.to_json() for x in self.layers if x.result is not None],
            "failed": [x.to_json() for x in self.layers if x.result is None],
            "totals": [vars(total) for total in self.totals],
            "coverage": vars(self.model.coverage),
            "uncovered": [vars(node) for node in self.model.uncovered],
            "device": {key: getattr(self.device, key) for key in ("name", "simulated", "label")},
            "objective": self.objective,
            "max_slowdown": self.max_slowdown,
            "trials": self.trials,
            "trial_count": self.trial_count,
            "metered_count": self.metered_count,
            "seconds": self.seconds,
            "seed": self.seed,
            "stopped": self.stopped,
            "spent": vars(self.spent),
            "turns": list(self.turns),
            "plan": self.plan.to_json() if self.plan else None,
            "clocks_note": self.clocks_note,
        }


def _sum_figures(
    used: Sequence[tuple[TuningResult, int]], get_figure: Callable[[TuningResult], float | None]
) -> float | None:
    """Sum a figure over all calls; None where a layer lacks it."""
    figures = [(get_figure(result), count) for result, count in used]
    known = [figure * count for figure, count in figures if figure is not None]
    return sum(known) if len(known) == len(figures) else None
