"""Does the scheduler of a model reach with half of the trials what equal shares reach with all of them?

    python -m benchmarks.model.scheduler [--json FILE] [--only TEXT] [--devices a100,h100] [--seeds N]
        [--seed N] [--trials N] [--records DIR]

Three models of `examples/layers.toml` with a part of their layers, on simulated devices. Equal shares:
every layer is tuned alone with `--trials` trials. Half of all trials: by the scheduler, in turns (round-
robin), and in equal shares. Energy is the sum over one pass of the model, with each layer's best kernel, as
the simulated device has it without noise of the meter. The tables have ratios to equal shares with all
trials: below 1 is better. The second table has the seconds of a pass, since a search that finds a faster
kernel of a layer may lose one of less energy, which is then more than 5 % slower than the fastest. Intervals
are 95 % bootstrap intervals of the geometric mean. Measurements are kept in a record file for each model and
device, and finished runs in another file: a benchmark that was stopped goes on from there.

The bar: the upper end of the scheduler's interval over all runs is at most 1.01, and its mean is below that
of round-robin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.run_log import RunLog, name_file
from benchmarks.common.script import Arguments, Column, format_lines, make_main, select_names
from benchmarks.search.ablation_variants import apply_changes
from ekc import devices
from ekc.codegen.generate import compile_schedule
from ekc.devices.simulated.device import SimulatedDevice
from ekc.errors import InvalidInput
from ekc.models.layer_file import from_layers
from ekc.models.model import Model
from ekc.search.data.options import TuneOptions
from ekc.search.database.database import RecordStore
from ekc.search.loop.compile_job import open_worker_pool
from ekc.search.whole_model.model_result import ModelResult
from ekc.search.whole_model.model_search import ModelSearch
from ekc.search.whole_model.scheduler import LayerRun, TrialBudget

LAYERS = Path(__file__).parents[2] / "examples" / "layers.toml"
MODELS = {
    "ResNet-50, batch 1": 3,
    "BERT-base, sequence 128, batch 1": 1,
    "Llama-3-8B, decode batch 1": 1,
}
"""Model -> n: every n-th of its layers is tuned."""
STRATEGIES = ("equal", "scheduler", "round-robin", "half each")
"""Ways to share the trials of a model. "equal" uses all trials, every other way uses half as many."""
COSTS = {"energy_j": "energy", "latency_s": "latency"}
"""Costs of a pass of a model, each with its name in the tables."""
Run = dict[str, dict[str, float]]
"""Strategy -> costs of a pass."""
MAX_SLOWDOWN = 0.05
BAR = 1.01
RESAMPLED = 2000


def read_model(name: str) -> Model:
    """A model of the example with a part of its layers, each with its calls in this model alone."""
    layers = [
        replace(layer, uses=uses)
        for layer in from_layers(LAYERS).layers
        if (uses := tuple(use for use in layer.uses if use.model == name))
    ]
    return Model(name, tuple(layers[:: MODELS[name]]))


def run_strategy(
    model: Model,
    device: SimulatedDevice,
    strategy: str,
    trials: int,
    seed: int,
    store: RecordStore,
    workers: Executor,
) -> dict[str, Any]:
    """Tune a model by a strategy; its true costs. `trials`: of each layer with equal shares."""
    share = trials if strategy == "equal" else trials // 2
    is_equal = strategy in ("equal", "half each")
    budget = TrialBudget(share * len(model.layers), is_equal, None)
    options = TuneOptions(share, "energy", MAX_SLOWDOWN, False, seed, None)
    picks = {"ekc.search.whole_model.scheduler:pick_largest_saving": pick_fewest_trials}
    with apply_changes(picks if strategy == "round-robin" else {}):
        result = ModelSearch(model, device, options, budget, store, workers).run()
    return {"used": result.trial_count} | compute_true_costs(result, device)


def pick_fewest_trials(runs: Sequence[LayerRun]) -> LayerRun:
    """Replace the choice of the next layer: the one with the fewest trials, the first of equals."""
    return min(runs, key=lambda run: run.trial_count)


def compute_true_costs(result: ModelResult, device: SimulatedDevice) -> dict[str, float]:
    """Joules and seconds of a pass of the model with the best kernels, without noise. Raises `InvalidInput`
    for a layer without a kernel."""
    total = dict.fromkeys(COSTS, 0.0)
    for x in result.layers:
        if x.result is None:
            raise InvalidInput(f"{x.layer.name}: {x.failure}")
        kernel = compile_schedule(x.result.best.schedule, device.arch, device.limits)
        call = device.break_down_energy(kernel)
        total["energy_j"] += x.layer.count * call.energy_j
        total["latency_s"] += x.layer.count * call.latency_s
    return total


def run_model(name: str, target: str, seed: int, trials: int, folder: Path) -> Run:
    """True costs of a model by each strategy. Runs on file are not made again."""
    model, device, found = read_model(name), devices.open(target), {}
    if not isinstance(device, SimulatedDevice):
        raise InvalidInput(f"--devices: {target} is not simulated, so its true energy is not known")
    log = RunLog(folder / "runs.jsonl", ("model", "device", "seed", "trials", "strategy"))
    file = name_file(folder, f"{name} {target}", "db")
    with RecordStore(file) as store, open_worker_pool(device, trials * len(model.layers)) as workers:
        for strategy in STRATEGIES:
            asked = {"model": name, "device": target, "seed": seed, "trials": trials, "strategy": strategy}
            make = partial(run_strategy, model, device, strategy, trials, seed, store, workers)
            found[strategy] = log.find_or_make(asked, make, format_run)
    return found


def format_run(line: dict[str, Any]) -> str:
    """One line of text about a finished run."""
    costs = f"{line['energy_j']:.6g} J, {line['latency_s']:.6g} s"
    return f"{line['model']} {line['device']} seed {line['seed']}: {line['strategy']} {costs}"


def summarise(runs: list[Run], strategy: str, cost: str) -> dict[str, float]:
    """Geometric mean of the ratios to equal shares, and its interval over resampled runs."""
    logs = np.log([run[strategy][cost] / run["equal"][cost] for run in runs])
    picks = np.random.default_rng(0).integers(0, len(logs), (RESAMPLED, len(logs)))
    low, high = np.quantile(logs[picks].mean(axis=1), (0.025, 0.975))
    return {"mean": math.exp(logs.mean()), "low": math.exp(low), "high": math.exp(high)}


def make_line(label: str, runs: list[Run]) -> dict[str, Any]:
    """The line of some runs."""
    costs = {cost: {s: summarise(runs, s, cost) for s in STRATEGIES[1:]} for cost in COSTS}
    return {"runs": label, "count": len(runs)} | costs


def format_costs(lines: list[dict[str, Any]], cost: str) -> str:
    """The table of energies or latencies."""
    form = "{mean:.3f} ({low:.3f} to {high:.3f})".format_map
    verdict = [Column("", "pass")] if cost == "energy_j" else []
    ways = (Column(strategy, strategy, form) for strategy in STRATEGIES[1:])
    columns = [Column(COSTS[cost], "runs"), Column("runs", "count"), *ways, *verdict]
    return format_lines(columns, [line | line[cost] for line in lines])


def measure(arguments: Arguments) -> dict[str, Any]:
    """Run all models, and print the table."""
    arguments.records.mkdir(parents=True, exist_ok=True)
    names = select_names(MODELS, arguments.only)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        for name in names:
            for target in arguments.devices.split(","):
                runs[name].append(run_model(name, target, seed, arguments.trials, arguments.records))
    lines = [make_line(name, found) for name, found in runs.items()]
    together = make_line("all", [run for found in runs.values() for run in found])
    mean, other = (together["energy_j"][s] for s in ("scheduler", "round-robin"))
    together["pass"] = mean["high"] <= BAR and mean["mean"] < other["mean"]
    lines.append(together)
    print(
        f"true costs with half of the trials, relative to equal shares of {arguments.trials} trials a layer"
    )
    print(f"simulated {arguments.devices}; geometric mean and 95 % interval")
    for cost in COSTS:
        print(format_costs(lines, cost))
    return {"lines": lines}


OPTIONS = {
    "--only": {"metavar": "TEXT", "default": "", "help": "models with this in their name"},
    "--devices": {"default": "a100,h100", "help": "simulated devices, default %(default)s"},
    "--seeds": {"type": int, "default": 3, "help": "runs of each model on each device"},
    "--trials": {"type": int, "default": 24, "help": "trials of each layer with equal shares"},
    "--records": {"type": Path, "default": Path("build/scheduler")},
}
main = make_main(__doc__, measure, {"high": BAR}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
