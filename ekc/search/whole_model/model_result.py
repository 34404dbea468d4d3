"""The result of `ekc.tune_model`: its layers with their results, the sums over them, and what a user does
with it (export, report, print)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ekc.codegen.library.build import build_library
from ekc.codegen.library.function_plan import name_layers
from ekc.codegen.library.kernels import Bundle
from ekc.codegen.library.legal_names import check_bundle_name, make_library_name
from ekc.codegen.library.write import write_bundle
from ekc.display import format_html_table, format_line, shorten
from ekc.ir.lowering.lower import derive_launches
from ekc.models.model import Model, ModelLayer
from ekc.search.clocks.plan import ClockPlan
from ekc.search.data.result import DeviceInfo, MeasurementCost
from ekc.search.data.trial import describe_energy_source, describe_trial
from ekc.search.summary import format_speedup, wrap_note
from ekc.search.tuning_result import TuningResult, make_board, make_choice
from ekc.tables import choose_unit, count_nouns, format_figure, format_quantity, format_table
from ekc.version import __version__

if TYPE_CHECKING:
    from ekc.report.page import ReportPage


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


@dataclass(frozen=True, repr=False)
class ModelResult:
    """The outcome of `ekc.tune_model`."""

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

    def summary(self) -> str:
        """Format the result as text: a table of the layers, the sums of the model, and notes."""
        return format_model_summary(self)

    def make_bundle(self, name: str | None = None) -> Bundle:
        """Make the C++ library of the best kernels, and of the fastest where these are others. Functions have
        the names of the layers, whatever layers have a kernel. Raises `InvalidInput` for the names."""
        name = make_library_name(self.model.name) if name is None else check_bundle_name(name)
        choices = {}
        for result in self.results:
            best = make_choice(result.best, provenance=result.provenance())
            if result.best.schedule != result.fastest.schedule:
                fastest = make_choice(result.fastest, "latency")
                choices[result.op.digest] = [fastest, replace(best, role="energy")]
            else:
                choices[result.op.digest] = [best]
        return build_library(name, name_layers(self.model.layers), choices, make_board(self.device))

    def export(self, folder: str | Path, name: str | None = None, *, cubin: bool = False) -> tuple[Path, ...]:
        """Write the kernels of all layers as a C++ library: a project for CMake and make. Returns the paths,
        CUDA source first.

        name: of the library; by default one made of the model's.
        cubin: embed machine code, so that the library is built without nvcc.

        Raises `InvalidInput` for the name, and for a folder that cannot be written or that holds a library of
        another name.
        """
        return write_bundle(self.make_bundle(name), folder, cubin=cubin)

    def report(self, file: str | Path) -> Path:
        """Write a report of the run: one HTML page with a table of the layers and a section for each. It
        needs no network. Returns the path.

        Raises `InvalidInput` for a file that cannot be written, and where plotly is not installed.
        """
        return self.make_report().write(file)

    def make_report(self) -> ReportPage:
        """Make the page that `report` writes. Raises `InvalidInput` where plotly is not installed."""
        from ekc.report.page import make_report
        from ekc.report.theme import import_plotly
        from ekc.search.run_data.from_result import collect_run

        import_plotly()
        runs = [
            replace(collect_run(x.result), layer=x.layer.name, calls=x.layer.count)
            for x in self.layers
            if x.result is not None
        ]
        absent = [f"{x.layer.name}: {x.failure}" for x in self.layers if x.result is None]
        return make_report(runs, f"Layers of {self.model.name}", absent, self.plan)

    def __repr__(self) -> str:
        totals = "; ".join(format_total(total) for total in self.totals)
        return format_line(self, f"{shorten(self.device.label, 40)}: {totals}")

    def _repr_html_(self) -> str:
        return format_model_html(self)


def _sum_figures(
    used: Sequence[tuple[TuningResult, int]], get_figure: Callable[[TuningResult], float | None]
) -> float | None:
    """Sum a figure over all calls; None where a layer lacks it."""
    figures = [(get_figure(result), count) for result, count in used]
    known = [figure * count for figure, count in figures if figure is not None]
    return sum(known) if len(known) == len(figures) else None


MAX_UNCOVERED = 8
"""Kinds of uncovered nodes that are listed, at most."""


def format_model_summary(data: ModelResult) -> str:
    """Format a tuned model: layers, sums, notes."""
    notes = [line for note in list_model_notes(data) for line in wrap_note(*note)]
    totals = "\n".join(format_total(total) for total in data.totals)
    headers, rows = make_layer_table(data)
    table = format_table(headers, rows, _format_title(data), label_count=headers.index("times"))
    plan = ["", data.plan.summary()] if data.plan else []
    return "\n".join([table, "", totals, "", *notes, *plan])


def format_model_html(data: ModelResult) -> str:
    """A table of the layers in HTML, with the sums below."""
    note = "\n".join([*(format_total(total) for total in data.totals), "summary() has more"])
    headers, rows = make_layer_table(data)
    return format_html_table(headers, rows, _format_title(data), note, label_count=headers.index("times"))


def _format_title(data: ModelResult) -> str:
    lines = [f"Best schedules on {data.device.label}; latency and energy of one call"]
    if data.device.simulated:
        lines.append("Simulated: every figure comes from a model of the device. Nothing ran on a GPU.")
    return "\n".join(lines)


def make_layer_table(data: ModelResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Make (headers, rows) of the layers that have a kernel, with the number of times that each is called.
    The first column has the model of each layer, if there are several."""
    latency, unit_s = choose_unit([r.best.latency_s for r in data.results], "s")
    energy, unit_j = choose_unit([r.best.energy_j for r in data.results], "J")
    figures = (f"latency [{unit_s}]", "power [W]", f"energy [{unit_j}]", "source", "of roofline", "vs naive")
    tuned = [(x.layer, x.result) for x in data.layers if x.result is not None]
    models = [layer.uses[0].model for layer, _ in tuned]
    rows: list[tuple[str, ...]] = [
        (
            layer.name,
            str(layer.count),
            format_figure(result.best.latency_s, latency),
            format_figure(result.best.power_w),
            format_figure(result.best.energy_j, energy),
            describe_energy_source(result.best),
            format_share(result.roofline_share),
            format_speedup(result.baseline, result.best),
        )
        for layer, result in tuned
    ]
    headers = ("layer", "times", *figures)
    if len(set(models)) < 2:
        return headers, rows
    return ("model", *headers), [(model, *row) for model, row in zip(models, rows, strict=True)]


def format_share(share: float) -> str:
    """Format a share in percent; "-" where it is unknown."""
    return f"{100 * share:.1f}%" if math.isfinite(share) else "-"


def format_total(total: ModelTotal) -> str:
    """Format the sum over the layers of one model in a line."""
    parts = [count_nouns(total.calls, "call"), format_quantity(total.latency_s, "s")]
    if total.energy_j is not None:
        parts.append(format_quantity(total.energy_j, "J"))
    line = f"{total.model or 'all layers'}: {', '.join(parts)} in sum"
    return line + (f", without {', '.join(total.missing)}" if total.missing else "")


def list_model_notes(data: ModelResult) -> list[tuple[str, str]]:
    """List names and texts of the notes; a note that does not apply has no text."""
    counts = (
        f"{data.trial_count} of {data.trials}, {data.metered_count} of them metered, in {data.seconds:.1f} s"
    )
    several = len(data.totals) > 1
    return [
        *((name, _prefix(total, several) + text) for total in data.totals for name, text in _compare(total)),
        ("launches", _describe_launches(data)),
        ("trials", counts),
        ("cost", _describe_cost(data)),
        ("uncovered", describe_uncovered(data)),
        ("changed", " ".join(data.model.notes)),
        ("clocks", data.clocks_note),
        ("stopped", data.stopped),
    ]


def _prefix(total: ModelTotal, several: bool) -> str:
    return f"{total.model or 'all layers'}: " if several else ""


def _compare(total: ModelTotal) -> list[tuple[str, str]]:
    """Compare the sums with the roofline, the fastest kernels and the naive kernels."""
    notes = []
    if total.latency_s and math.isfinite(total.roofline_s):
        least, share = format_quantity(total.roofline_s, "s"), format_share(total.roofline_share)
        notes.append(("roofline", f"the layers take {least} at least, {share} of the latency"))
    if total.energy_j is None or total.fastest_j is None:
        return notes
    slower = f"at {100 * (total.latency_s / total.fastest_s - 1):z.1f}% more latency"
    saved = f"{_format_saving(total.energy_j, total.fastest_j)} than with the fastest kernels, {slower}"
    if total.naive_j is not None:
        saved += f"; {_format_saving(total.energy_j, total.naive_j)} than with the naive ones"
    return [*notes, ("energy", saved)]


def _format_saving(energy_j: float, other_j: float) -> str:
    saved = 100 * (1 - energy_j / other_j)
    return f"{abs(saved):.1f}% {'less' if saved >= 0 else 'more'}"


def _describe_launches(data: ModelResult) -> str:
    """Describe how the sums are made."""
    kernels = count_nouns(sum(total.launches for total in data.totals), "kernel")
    return f"{kernels} in sum; latency and energy are the sum over the calls, launches included"


def _describe_cost(data: ModelResult) -> str:
    spent = data.spent
    words = f"{format_figure(spent.joules)} J on the device: {spent.metering_s:.0f} s of metering"
    return f"simulated; a real GPU would take {words}" if data.device.simulated else words


def describe_uncovered(data: ModelResult) -> str:
    """Describe what no layer computes: its shares of the model, and the kinds of nodes; "" if all is
    covered."""
    nodes, coverage = data.model.uncovered, data.model.coverage
    if not nodes:
        return ""
    flops, size = 100 * (1 - coverage.flops), 100 * (1 - coverage.bytes)
    unknown = count_nouns(coverage.unknown_nodes, "node") if coverage.unknown_nodes else ""
    start, known = (f"{unknown} of unknown work; ", "known flops") if unknown else ("", "flops")
    shares = f"{start}{flops:.2f}% of the {known}, {size:.1f}% of the bytes"
    ranked = sorted(nodes, key=lambda node: -node.bytes)
    listed = [f"{node.target} ({node.count}): {node.reason}" for node in ranked[:MAX_UNCOVERED]]
    more = len(nodes) - len(listed)
    return f"{shares}: {'; '.join([*listed, *([f'{more} more'] if more else [])])}"
