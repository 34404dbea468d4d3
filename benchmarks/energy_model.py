"""The energy model of ekc on kernels that others measured, beside latency x constant power.

    python benchmarks/energy_model.py --data DIR [--json FILE] [--seed N] [--only NAME]

DIR holds the recordings. Five folds, no kernel in two of them. A tuner has timed a kernel before it predicts
its energy, so "time known" is its situation: energy = measured time x predicted power. "Configuration alone"
is the harder case. Errors are absolute and relative. The bar is for A4000 hotspot: the mean error of "ekc,
time known" at most a tenth of that of latency x constant power (11.1 %). On A100 GEMM nobody can do better
than the noise, which is printed: many of its configurations are one kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from energy_rows import HOTSPOT, Kernels, kernels, noise, noise_text
from numpy.typing import NDArray
from ranking import spearman
from recordings import RECORDINGS, Recording
from tune_table import table

import ekc
from ekc.errors import InvalidInput
from ekc.search.cost_model.surrogate import Surrogate
from ekc.search.cost_model.xgboost_model import ResidualModel
from ekc.search.data.defaults import POWER_MODEL

Array = NDArray[np.float64]

FOLDS = 5
TIMES_BETTER = 10.0
JUDGED, RULE = "ekc, time known", "latency x constant power"
LATENCY = "latency alone"
ENERGIES = tuple(r for r in RECORDINGS if r.figure == "energy_j")
HEADERS = ("recording", "prediction", "mean", "median", "RMS", "least quarter", "Spearman", "mean ratio", "")


def constant_power(known: Kernels, asked: Kernels, seed: int) -> Array:
    """The trivial predictor."""
    return asked.time * np.median(known.energy / known.time)


def latency_alone(known: Kernels, asked: Kernels, seed: int) -> Array:
    """Only its order means anything."""
    return asked.time


def time_known(known: Kernels, asked: Kernels, seed: int) -> Array:
    """The belief in power that a tuning run has, over constant power; rows of little energy count most."""
    return _by_power(known, asked, seed, known.energy)


def all_alike(known: Kernels, asked: Kernels, seed: int) -> Array:
    """The same, every row counting the same."""
    return _by_power(known, asked, seed, np.ones(len(known.energy)))


def _by_power(known: Kernels, asked: Kernels, seed: int, merits: Array) -> Array:
    power = known.energy / known.time
    belief = Surrogate(seed, POWER_MODEL.tree_share)
    belief.learn(known.timed, np.full(len(power), np.median(power)), power, objective_values=merits)
    mean, _ = belief.predict(asked.timed, np.full(len(asked.time), np.median(power)))
    return np.asarray(asked.time * np.exp(mean))


def configuration_alone(known: Kernels, asked: Kernels, seed: int) -> Array:
    """The belief in energy itself."""
    belief, level = Surrogate(seed, POWER_MODEL.tree_share), float(np.median(known.energy))
    belief.learn(known.features, np.full(len(known.energy), level), known.energy)
    return np.asarray(np.exp(belief.predict(asked.features, np.full(len(asked.energy), level))[0]))


def tree_with_time(known: Kernels, asked: Kernels, seed: int) -> Array:
    """Trees alone on the energy, given configuration and time, every row counting the same."""
    model = ResidualModel(seed)
    for row, joules in zip(known.timed, known.energy.tolist(), strict=True):
        model.add_row(row, 1.0, joules, 1.0)
    model.fit()
    return model.predict(asked.timed, np.ones(len(asked.energy)))


PREDICTIONS: dict[str, Callable[[Kernels, Kernels, int], Array]] = {
    JUDGED: time_known,
    "ekc, time known, all rows alike": all_alike,
    "tree given the true time": tree_with_time,
    RULE: constant_power,
    LATENCY: latency_alone,
    "ekc, configuration alone": configuration_alone,
}


def folded(whole: Kernels, predict: Callable[[Kernels, Kernels, int], Array], seed: int) -> Array:
    """Every row predicted from the folds that do not hold its kernel."""
    ids, place = np.unique(whole.kernel, return_inverse=True)
    fold = (np.random.default_rng(seed).permutation(len(ids)) % FOLDS)[place]
    found = np.full(len(whole.energy), np.nan)
    for n in range(FOLDS):
        found[fold == n] = predict(whole[fold != n], whole[fold == n], seed)
    return found


def scores(predicted: Array, measured: Array) -> dict[str, float | None]:
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


def measure(folder: Path, recording: Recording, seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All lines of one recording, and what is known of its noise."""
    whole = kernels(folder, recording)
    lines: list[dict[str, Any]] = []
    for name, predict in PREDICTIONS.items():
        found = scores(folded(whole, predict, seed), whole.energy)
        if name == LATENCY:
            found = {"spearman": found["spearman"]}
        lines.append({"recording": recording.name, "rows": len(whole.energy), "prediction": name, **found})
    rule = next(line["mean"] for line in lines if line["prediction"] == RULE)
    for line in lines:
        if "mean" in line:
            line["times_better"] = rule / line["mean"]
        if recording.name == HOTSPOT and line["prediction"] == JUDGED:
            line |= {"bar": {"times_better": TIMES_BETTER}, "pass": line["times_better"] >= TIMES_BETTER}
    return lines, noise(recording.name, folder, whole)


def row_text(line: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table as text."""
    errors = [
        f"{line[k]:.2%}" if k in line else "-" for k in ("mean", "median", "rms", "least_quarter_median")
    ]
    rank = "-" if line["spearman"] is None else f"{line['spearman']:.4f}"
    ratio = f"{line['times_better']:.1f}" if "times_better" in line else "-"
    verdict = "" if "pass" not in line else "pass" if line["pass"] else "FAIL"
    return line["recording"], line["prediction"], *errors, rank, ratio, verdict


def main() -> None:
    """Print the table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder of the recordings")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="of the folds and the models")
    parser.add_argument("--only", choices=[r.name for r in ENERGIES], help="one recording")
    arguments = parser.parse_args()
    lines: list[dict[str, Any]] = []
    noises: list[dict[str, Any]] = []
    for recording in ENERGIES:
        if arguments.only in (None, recording.name):
            try:
                found, its_noise = measure(arguments.data, recording, arguments.seed)
            except InvalidInput as problem:
                parser.error(str(problem))
            lines, noises = lines + found, [*noises, its_noise]
    judged = [line["pass"] for line in lines if "pass" in line]
    print(
        f"ekc {ekc.__version__}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"{os.cpu_count()} cores"
    )
    print(f"Relative errors on recordings of real GPUs made by others; {FOLDS} folds, seed {arguments.seed}")
    print(table([HEADERS, *map(row_text, lines)]))
    print("mean ratio: mean error of latency x constant power over this one")
    print("\n".join(map(noise_text, noises)))
    print("no bar here" if not judged else "pass" if all(judged) else "FAIL")
    if arguments.json:
        result = {"lines": lines, "noise": noises, "pass": bool(judged) and all(judged)}
        arguments.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
