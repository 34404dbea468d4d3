"""Energy that a clock plan saves: by kernels alone, by the clock alone, and by both searched together.

    python -m benchmarks.model.clock_plan [--json FILE] [--only NAME] [--trials N] [--seeds N]

Three models of three layers, on three simulated devices, at most 5 % slower than the fastest kernels at the
default clock. All three methods start from one search of N schedules a layer, and may take the same number of
further meterings: "kernels" of any kernel at the default clock, "clock" of the fastest kernels at any clock,
"together" of any kernel at any clock. Each then makes the plan that it can. Judged is the truth of the
simulator: no noise, a board at its settled temperature. Printed is the energy saved in percent, the median
over the seeds; the true slowdown of the plan of both; and its error, promised minus true saving in points.
The bar: over all runs, both together save at least as much as either alone in the median.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ekc
from benchmarks.common.script import WIDE_TABLE, Arguments, make_main, select_names
from benchmarks.search.ablation_variants import apply_changes
from ekc import devices
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.simulated.device import SimulatedDevice
from ekc.ir.operator import Operator
from ekc.ir.schedule.schedule import Schedule
from ekc.search.clocks.choose import KernelFront, LayerFront, ModelFronts, WeightedFigures, make_plan
from ekc.search.clocks.clock_search import FAILED_FACTOR, ClockSearch
from ekc.search.clocks.plan import ClockPlan
from ekc.search.data.defaults import CLOCK_SEARCH
from ekc.search.data.options import TuneOptions
from ekc.search.data.result import MeasurementCost
from ekc.search.database.database import RecordStore
from ekc.search.loop.clock_stage import ClockStage, SearchedLayer
from ekc.search.loop.compile_job import KernelCompiler
from ekc.search.loop.measure import Measurer
from ekc.search.run import TuningRun
from ekc.search.space.space import Space
from ekc.tables import format_table

PairFilter = Callable[[int, int, int], bool]
MAX_SLOWDOWN = 0.05
METERINGS_PER_LAYER = 4
DEVICES = ("a100", "h100", "rtx4090")
KERNELS, CLOCK, TOGETHER = METHODS = ("kernels", "clock", "together")
RESAMPLED = 2000
BAR = {"together_at_least": 1.0}
MODELS: dict[str, tuple[tuple[str, Operator, int], ...]] = {
    "encoder": (
        ("projection", ekc.matmul(256, 512, 512), 4),
        ("softmax", ekc.softmax((2048, 256)), 1),
        ("expansion", ekc.matmul(256, 2048, 512), 2),
    ),
    "decoder step": (
        ("projection", ekc.matvec(2048, 2048), 4),
        ("expansion", ekc.matvec(8192, 2048), 3),
        ("softmax", ekc.softmax((32, 4096)), 1),
    ),
    "convolutions": (
        ("3x3", ekc.conv2d(1, 64, 28, 28, out_channels=64, kernel=3, padding=1), 3),
        ("1x1", ekc.conv2d(1, 128, 28, 28, out_channels=128, kernel=1), 4),
        ("head", ekc.matvec(1000, 2048), 1),
    ),
}
HEADERS = ("model", "device", *METHODS, "true time", "promised - true", "meterings", "clock [MHz]")


@dataclass(frozen=True)
class Bench:
    """A simulated device, with a compiler and a store that all methods share."""

    device: SimulatedDevice
    store: RecordStore
    compiler: KernelCompiler

    def get_truth(self, schedule: Schedule, mhz: int) -> tuple[float, float]:
        """(seconds, joules) of a call, without noise."""
        kernel: CompiledKernel = self.compiler.get_kernel(schedule)
        found = self.device.at_clock(mhz).break_down_energy(kernel)
        return found.latency_s, found.energy_j


def measure(arguments: Arguments) -> dict[str, Any]:
    """One line for each model and device, and the medians over all runs."""
    names = [f"{model}, {device}" for model in MODELS for device in DEVICES]
    lines, rows = [], []
    for name in select_names(names, arguments.only):
        model, device = name.split(", ")
        seeds = range(arguments.seed, arguments.seed + arguments.seeds)
        runs = [measure_run(model, device, arguments.trials, seed) for seed in seeds]
        line = {"model": model, "device": device, "runs": runs}
        lines.append(line)
        rows.append(make_row(line))
        print(" | ".join(rows[-1]), flush=True)
    runs = [run for line in lines for run in line["runs"]]
    summary = summarise_runs(runs)
    print(format_table(HEADERS, rows, "Energy saved in %, simulated, noise-free truth", 2, WIDE_TABLE))
    for name, figure in summary["saved"].items():
        print(f"{name}: {format_interval(figure)} % saved in the median of {len(runs)} runs")
    for name, figure in summary["advantage"].items():
        print(f"together - {name}: {format_interval(figure)} points in the median")
    print(f"promised - true: {format_interval(summary['error'])} points in the median")
    return {"lines": lines, "summary": summary, "pass": summary["pass"]}


def measure_run(model: str, device_name: str, trials: int, seed: int) -> dict[str, Any]:
    """True savings of the three methods after one search of schedules."""
    device = devices.open(device_name)
    assert isinstance(device, SimulatedDevice)
    with RecordStore(None) as store, ThreadPoolExecutor(2) as executor:
        bench = Bench(device, store, KernelCompiler(executor, device))
        options = TuneOptions(trials, "energy", MAX_SLOWDOWN, False, seed, None)
        layers, results = [], []
        for name, op, calls in MODELS[model]:
            run = TuningRun(Space(op, device.limits), Measurer(device, store), executor, options)
            results.append(run.run(()))
            layers.append(SearchedLayer.from_result(name, {model: calls}, results[-1]))
        cost = MeasurementCost(idle_w=results[-1].spent.idle_w)
        found = {method: run_method(bench, layers, method, cost, seed) for method in METHODS}
    return found | {"seed": seed, "trials": trials}


def run_method(
    bench: Bench, layers: Sequence[SearchedLayer], method: str, cost: MeasurementCost, seed: int
) -> dict[str, Any]:
    """The plan of one method, its true saving and slowdown, and what it promised."""
    stage = ClockStage(
        layers,
        Measurer(bench.device, bench.store, replace(cost)),
        bench.compiler.get_kernel,
        MAX_SLOWDOWN,
        seed,
    )
    default = round(bench.device.clocks().current_mhz)
    allows = make_filter(layers, method, default)
    meterings = replace(CLOCK_SEARCH, min_meterings=METERINGS_PER_LAYER * len(layers))
    changes = {"ClockSearch": partial(RestrictedSearch, allows=allows), "CLOCK_SEARCH": meterings}
    with apply_changes({f"ekc.search.loop.clock_stage:{name}": value for name, value in changes.items()}):
        stage.run()
    fronts = stage.make_fronts()
    assert fronts is not None
    assert stage.search is not None
    plan = make_plan(restrict_fronts(fronts, method), MAX_SLOWDOWN)
    true_s, true_j, fastest_s, fastest_j = sum_truth(bench, layers, plan, default)
    return {
        "saved": 100 * (1 - true_j / fastest_j),
        "slowdown": 100 * (true_s / fastest_s - 1),
        "promised": 100 * plan.savings.together.value,
        "clock_mhz": plan.clock_mhz,
        "meterings": sum(stage.search.meterings.values()),
        "metering_s": stage.metering_s,
    }


@dataclass
class RestrictedSearch(ClockSearch):
    """A search whose plan may have some kernels at some clocks alone."""

    allows: PairFilter = lambda layer, kernel, mhz: True
    """Whether a plan may have a kernel of a layer at a clock. The fastest kernels at the default clock must
    be allowed."""

    def _weigh(self, log_latency: NDArray[np.float64], log_energy: NDArray[np.float64]) -> WeightedFigures:
        figures = super()._weigh(log_latency, log_energy)
        for n, layer in enumerate(self.layers):
            refused = [
                [not self.allows(n, k, mhz) for mhz in self.clocks_mhz] for k in range(len(layer.kernels))
            ]
            for values in (figures.latency_s[n], figures.energy_j[n]):
                values[..., np.array(refused)] *= FAILED_FACTOR
        return figures


def make_filter(layers: Sequence[SearchedLayer], method: str, default_mhz: int) -> PairFilter:
    """Filter of the kernels and clocks that a method may choose for its plan."""
    kept = [layer.keep_trials() for layer in layers]

    def is_fastest(layer: int, kernel: int) -> bool:
        return "fastest" in layers[layer].get_role(kept[layer][kernel])

    if method == KERNELS:
        return lambda layer, kernel, mhz: mhz == default_mhz
    return lambda layer, kernel, mhz: method == TOGETHER or is_fastest(layer, kernel)


def restrict_fronts(fronts: ModelFronts, method: str) -> ModelFronts:
    """The figures that a method may choose from."""
    if method == KERNELS:
        at = fronts.clocks_mhz.index(fronts.default_mhz)
        layers = tuple(replace(x, kernels=tuple(_cut(k, at) for k in x.kernels)) for x in fronts.layers)
        return replace(fronts, clocks_mhz=(fronts.default_mhz,), layers=layers)
    if method == CLOCK:
        return replace(fronts, layers=tuple(_keep_fastest(layer) for layer in fronts.layers))
    return fronts


def _cut(kernel: KernelFront, at: int) -> KernelFront:
    latency, energy, metered = (
        x[at : at + 1] for x in (kernel.latency_s, kernel.energy_j, kernel.is_metered)
    )
    return replace(kernel, latency_s=latency, energy_j=energy, is_metered=metered)


def _keep_fastest(layer: LayerFront) -> LayerFront:
    return replace(layer, kernels=tuple(k for k in layer.kernels if "fastest" in k.role))


def sum_truth(
    bench: Bench, layers: Sequence[SearchedLayer], plan: ClockPlan, default_mhz: int
) -> tuple[float, float, float, float]:
    """True seconds and joules of the model by the plan, and with the fastest kernels at the default clock."""
    sums = np.zeros(4)
    for layer, planned in zip(layers, plan.layers, strict=True):
        schedules = {t.schedule.digest: t.schedule for t in layer.keep_trials()}
        mine = bench.get_truth(schedules[planned.schedule], plan.clock_mhz)
        sums += planned.calls * np.array([*mine, *bench.get_truth(layer.fastest.schedule, default_mhz)])
    return tuple(sums.tolist())


def make_row(line: dict[str, Any]) -> tuple[str, ...]:
    """Medians over the seeds."""
    runs = line["runs"]

    def median(method: str, key: str) -> float:
        return float(np.median([run[method][key] for run in runs]))

    errors = [run[TOGETHER]["promised"] - run[TOGETHER]["saved"] for run in runs]
    meterings = "/".join(f"{median(method, 'meterings'):.0f}" for method in METHODS)
    clocks = "/".join(f"{median(method, 'clock_mhz'):.0f}" for method in METHODS)
    saved = [f"{median(method, 'saved'):z.1f}" for method in METHODS]
    time = f"{median(TOGETHER, 'slowdown'):+z.1f}%"
    return (line["model"], line["device"], *saved, time, f"{np.median(errors):+z.1f}", meterings, clocks)


def summarise_runs(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over all runs with bootstrap intervals of 95 %."""
    saved = {method: np.array([run[method]["saved"] for run in runs]) for method in METHODS}
    together = saved[TOGETHER]
    advantage = {method: estimate_median(together - saved[method]) for method in (KERNELS, CLOCK)}
    promised = np.array([run[TOGETHER]["promised"] for run in runs])
    return {
        "saved": {method: estimate_median(values) for method, values in saved.items()},
        "advantage": advantage,
        "error": estimate_median(promised - together),
        "pass": all(figure[0] >= 0 for figure in advantage.values()),
    }


def estimate_median(values: Any) -> tuple[float, float, float]:
    """The median, and its 95 % interval by resampling runs."""
    random = np.random.default_rng(0)
    draws = np.median(random.choice(values, (RESAMPLED, len(values))), axis=1)
    return float(np.median(values)), float(np.quantile(draws, 0.025)), float(np.quantile(draws, 0.975))


def format_interval(figure: Sequence[float]) -> str:
    """`5.1 (4.0 to 6.2)`."""
    value, low, high = figure
    return f"{value:z.1f} ({low:z.1f} to {high:z.1f})"


OPTIONS = {
    "--only": {"default": "", "help": "models and devices whose name contains this"},
    "--trials": {"type": int, "default": 48, "help": "schedules a layer, default %(default)s"},
    "--seeds": {"type": int, "default": 3, "help": "number of seeds, default %(default)s"},
}
main = make_main(__doc__, measure, BAR, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
