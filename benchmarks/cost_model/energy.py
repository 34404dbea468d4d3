"""The energy model of ekc on kernels that others measured, beside trivial predictors.

    python -m benchmarks.cost_model.energy --data DIR [--json FILE] [--seed N] [--only NAME] [--draws N]

DIR holds the recordings. The first table has five folds, no kernel in two of them. A tuner has timed a kernel
before it predicts its energy, so "time known" is its situation: energy = measured time x predicted power.
"Configuration alone" is the harder case. Trivial predictors are time x median power, and P0 x time + E0 with
two fitted numbers. Errors are absolute and relative. The bar is for A4000 hotspot: the mean error of "ekc,
time known" at most a tenth of that of latency x constant power (11.1 %). On A100 GEMM no model can do better
than the noise, which is printed: many of its configurations are one kernel.

The second table has predictions learned from 8, 16, 32 and 64 kernels, means of N random draws. "90 % of
draws": quantile of their mean errors. "Least tenth": among the tenth of the kernels with least energy.
"Pick": energy of the kernel that is predicted to need least, over the least. The bars are for A4000 hotspot.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.ranking import spearman
from benchmarks.common.recordings import RECORDINGS, Recording
from benchmarks.common.script import WIDE_TABLE, format_verdict, make_main
from benchmarks.cost_model.energy_rows import HOTSPOT, Kernels, format_noise, measure_noise, read_kernels
from benchmarks.cost_model.few_rows import BARS, DRAWS, format_few_rows_line, measure_few_rows
from benchmarks.cost_model.few_rows import HEADERS as FEW_ROWS_HEADERS
from ekc.search.cost_model.power_model import LayeredPowerModel, fit_parametric_power, fit_two_numbers
from ekc.search.cost_model.surrogate import Surrogate
from ekc.search.cost_model.xgboost_model import ResidualModel
from ekc.search.data.defaults import POWER_MODEL
from ekc.tables import format_table

Array = NDArray[np.float64]

FOLDS = 5
TIMES_BETTER = 10.0
JUDGED, RULE = "ekc, time known", "latency x constant power"
LATENCY, TWO_NUMBERS, PARAMETRIC = "latency alone", "P0 t + E0", "ekc, parametric part alone"
ENERGIES = tuple(r for r in RECORDINGS if r.figure == "energy_j")
HEADERS = ("recording", "prediction", "mean", "median", "RMS", "least quarter", "Spearman", "mean ratio", "")


def predict_constant_power(learned: Kernels, tested: Kernels, seed: int) -> Array:
    """Predict energy as time times the median power: the trivial predictor."""
    return tested.time * np.median(learned.energy / learned.time)


def predict_two_numbers(learned: Kernels, tested: Kernels, seed: int) -> Array:
    """Predict energy as P0 x time + E0: the second trivial predictor."""
    fit = fit_two_numbers(learned.time, learned.energy / learned.time)
    return np.asarray(tested.time * np.exp(fit.predict_log_power(tested.time)))


def predict_by_latency(learned: Kernels, tested: Kernels, seed: int) -> Array:
    """Predict by latency alone: only the order of the predictions has a meaning."""
    return tested.time


def predict_power(learned: Kernels, tested: Kernels, seed: int) -> Array:
    """Predict by the power model of a tuning run, whose prior knows nothing of these kernels."""
    model = LayeredPowerModel(seed)
    priors = np.ones(len(learned.time)), np.ones(len(tested.time))
    model.learn(learned.timed, learned.time, priors[0], learned.energy / learned.time)
    mean, _ = model.predict(tested.timed, tested.time, priors[1])
    return np.asarray(tested.time * np.exp(mean))


def predict_parametric(learned: Kernels, tested: Kernels, seed: int) -> Array:
    """Predict as `predict_power`, without the surrogate."""
    priors = np.ones(len(learned.time)), np.ones(len(tested.time))
    model = fit_parametric_power(learned.time, priors[0], learned.energy / learned.time)
    return np.asarray(tested.time * np.exp(model.predict_log_power(tested.time, priors[1])))


def predict_energy(learned: Kernels, tested: Kernels, seed: int) -> Array:
    """Predict energy by its own surrogate, without the time."""
    surrogate, level = Surrogate(seed, POWER_MODEL.tree_share), float(np.median(learned.energy))
    surrogate.learn(learned.features, np.full(len(learned.energy), level), learned.energy)
    return np.asarray(np.exp(surrogate.predict(tested.features, np.full(len(tested.energy), level))[0]))


def predict_by_trees(learned: Kernels, tested: Kernels, seed: int) -> Array:
    """Predict by trees alone, from configuration and time, with equal weights of all rows."""
    model = ResidualModel(seed)
    for row, joules in zip(learned.timed, learned.energy.tolist(), strict=True):
        model.add_row(row, 1.0, joules, 1.0)
    model.fit()
    return model.predict(tested.timed, np.ones(len(tested.energy)))


PREDICTIONS: dict[str, Callable[[Kernels, Kernels, int], Array]] = {
    JUDGED: predict_power,
    PARAMETRIC: predict_parametric,
    "tree given the true time": predict_by_trees,
    RULE: predict_constant_power,
    TWO_NUMBERS: predict_two_numbers,
    LATENCY: predict_by_latency,
    "ekc, configuration alone": predict_energy,
}


FEW_ROWS = {name: PREDICTIONS[name] for name in (JUDGED, PARAMETRIC, RULE, TWO_NUMBERS, LATENCY)}


def predict_folds(whole: Kernels, predict: Callable[[Kernels, Kernels, int], Array], seed: int) -> Array:
    """Every row predicted from the folds that do not hold its kernel."""
    ids, place = np.unique(whole.kernel, return_inverse=True)
    fold = (np.random.default_rng(seed).permutation(len(ids)) % FOLDS)[place]
    found = np.full(len(whole.energy), np.nan)
    for n in range(FOLDS):
        found[fold == n] = predict(whole[fold != n], whole[fold == n], seed)
    return found


def compute_scores(predicted: Array, measured: Array) -> dict[str, float | None]:
    """Errors of all rows, and of the quarter with the least energy, where a search decides."""
    error = np.abs(predicted / measured - 1)
    least = measured <= np.quantile(measured, 0.25)
    return {
        "mean": float(error.mean()),
        "median": float(np.median(error)),
        "rms": float(np.sqrt(np.mean(error**2))),
        "least_quarter_median": float(np.median(error[least])),
        "spearman": spearman(predicted, measured),
    }


def measure_recording(
    folder: Path, recording: Recording, seed: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All lines of one recording, and the noise of its measurements."""
    whole = read_kernels(folder, recording)
    lines: list[dict[str, Any]] = []
    for name, predict in PREDICTIONS.items():
        found = compute_scores(predict_folds(whole, predict, seed), whole.energy)
        if name == LATENCY:
            found = {"spearman": found["spearman"]}
        lines.append({"recording": recording.name, "rows": len(whole.energy), "prediction": name, **found})
    rule = next(line["mean"] for line in lines if line["prediction"] == RULE)
    for line in lines:
        if "mean" in line:
            line["times_better"] = rule / line["mean"]
        if recording.name == HOTSPOT and line["prediction"] == JUDGED:
            line |= {"bar": {"times_better": TIMES_BETTER}, "pass": line["times_better"] >= TIMES_BETTER}
    return lines, measure_noise(recording.name, folder, whole)


def format_line(line: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table as text."""
    errors = [
        f"{line[k]:.2%}" if k in line else "-" for k in ("mean", "median", "rms", "least_quarter_median")
    ]
    rank = "-" if line["spearman"] is None else f"{line['spearman']:.4f}"
    ratio = f"{line['times_better']:.1f}" if "times_better" in line else "-"
    return line["recording"], line["prediction"], *errors, rank, ratio, format_verdict(line)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this script alone."""
    parser.add_argument("--data", type=Path, required=True, help="the folder of the recordings")
    parser.add_argument("--only", choices=[r.name for r in ENERGIES], help="one recording")
    parser.add_argument("--draws", type=int, default=DRAWS, help="random draws of few kernels")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Predict each recording, and print the tables."""
    lines: list[dict[str, Any]] = []
    few: list[dict[str, Any]] = []
    noises: list[dict[str, Any]] = []
    for recording in ENERGIES:
        if arguments.only in (None, recording.name):
            some, its_noise = measure_recording(arguments.data, recording, arguments.seed)
            lines, noises = lines + some, [*noises, its_noise]
            whole = read_kernels(arguments.data, recording)
            few += measure_few_rows(recording.name, whole, FEW_ROWS, LATENCY, arguments.draws, arguments.seed)
    print(f"Relative errors on recordings of real GPUs made by others; {FOLDS} folds, seed {arguments.seed}")
    print(format_table(HEADERS, [*map(format_line, lines)], label_count=2, width=WIDE_TABLE))
    print("mean ratio: mean error of latency x constant power over this one")
    print("\n".join(map(format_noise, noises)))
    print(f"Learned from few kernels; means of {arguments.draws} draws")
    print(format_table(FEW_ROWS_HEADERS, [*map(format_few_rows_line, few)], width=WIDE_TABLE))
    return {"lines": [*lines, *few], "noise": noises}


main = make_main(__doc__, measure, {"times_better": TIMES_BETTER, "mean_by_rows": BARS}, add_options)

if __name__ == "__main__":
    sys.exit(main())
