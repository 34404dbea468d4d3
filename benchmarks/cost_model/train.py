"""Train the boosted model of the prior's error, and judge it on operators and devices left out.

    python -m benchmarks.cost_model.train --folder DIR [--out DIR] [--recordings FILE ...]
        [--without TEXT ...] [--json FILE] [--seed N]

The rows are schedules of many operators on all simulated devices (`training_rows.py`), kept in --folder, and
the metered kernels of --recordings. Collecting them takes half an hour of one core, training some seconds.
--without leaves out the operators and devices with one of these texts in their name. --out is the folder
that the models and their card are written to; `ekc/search/cost_model/boosted_prior` has those that ekc uses.

*error*: mean distance of the log of real over predicted energy from its median over the kernels of one
operator on one device: a factor that all of them share does not change their order. *ratio*: error of the
model over that of the analytic prior, the trivial predictor. *pick*: energy of the kernel that is predicted
to need least, over the least. The model that predicts an operator has learned nothing of this operator; with
"kind left out", nothing of any operator of its name (matmul, conv2d, ...); with "device left out", nothing of
any device of its architecture. Bar: the geometric mean of the ratios of all operators is at most 0.80, each
way.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.script import Arguments, Column, describe_versions, format_lines, make_main
from benchmarks.cost_model.training_rows import TrainingRows, collect_rows, concatenate, read_recorded_rows
from ekc.boosted_trees import format_trees, predict_values, train_trees
from ekc.devices.analytic_prior import predict_prior
from ekc.devices.device import Prior
from ekc.devices.simulated.device import SIMULATOR_VERSION
from ekc.search.cost_model.boosted_prior import INPUT_NAMES, BoostedModels, BoostedPrior, add_latency
from ekc.search.cost_model.features import build_features, scale_power
from ekc.search.cost_model.row_weights import compute_weights

Array = NDArray[np.float64]

BAR = 0.80
PARAMETERS: Mapping[str, Any] = {
    "objective": "reg:squarederror",
    "max_depth": 6,
    "eta": 0.12,
    "min_child_weight": 5,
    "lambda": 3.0,
    "subsample": 0.7,
    "colsample_bytree": 0.5,
    "tree_method": "hist",
    "base_score": 0.0,
}
ROUNDS, SHARPNESS = 120, 1.0
"""Trees of each model. A row of twice the least energy of its operator and device weighs 2**-SHARPNESS."""
FEWEST = 8
"""Kernels of an operator on a device, below which nothing is said of them."""
COLUMNS = (
    Column("operator", "operator"),
    Column("left out", "left_out"),
    Column("rows", "rows"),
    Column("error of prior", "prior_error", ".3f"),
    Column("error", "error", ".3f"),
    Column("ratio", "ratio", ".2f"),
    Column("pick of prior", "prior_pick", ".3f"),
    Column("pick", "pick", ".3f"),
    Column("", "pass"),
)
OPTIONS = {
    "--folder": {"type": Path, "required": True, "help": "folder of the collected rows"},
    "--recordings": {"type": Path, "nargs": "*", "default": [], "help": "recordings whose kernels are added"},
    "--without": {"nargs": "*", "default": [], "metavar": "TEXT", "help": "operators and devices left out"},
    "--out": {"type": Path, "help": "folder to write the models and their card to"},
}


@dataclass(frozen=True, eq=False)
class TrainingTable:
    """Inputs and targets of the models. Arrays have one entry per row."""

    operator: NDArray[np.str_]
    device: NDArray[np.str_]
    arch: NDArray[np.str_]
    inputs: NDArray[np.float32]
    """[rows, `INPUT_NAMES`]."""
    latency_s: Array
    energy_j: Array
    prior: Prior
    """The analytic prior of each row."""

    @property
    def log_latency(self) -> Array:
        """Natural log of latency over its prior: the target of the first model."""
        return np.log(self.latency_s / self.prior.latency_s)

    @property
    def log_energy(self) -> Array:
        """Natural log of energy over the prior's at the same latency: the target of the second model."""
        return np.log(self.energy_j) - self.expect_log_energy(self.log_latency)

    def expect_log_energy(self, log_latency: Array) -> Array:
        """Natural log of the prior's energy at these latencies over their prior."""
        watts = scale_power(self.prior.power_w, log_latency, self.prior.standby_w)
        return np.log(self.prior.latency_s * watts) + log_latency

    def select_groups(self) -> list[NDArray[np.intp]]:
        """Rows of each operator on each device, where there are some."""
        pairs = np.char.add(np.char.add(self.operator, "|"), self.device)
        return [np.flatnonzero(pairs == pair) for pair in np.unique(pairs)]


def make_table(rows: TrainingRows) -> TrainingTable:
    """Make the inputs and targets of all rows, by the analytic prior of their devices."""
    inputs, figures = np.empty((len(rows), len(INPUT_NAMES)), np.float32), np.empty((3, len(rows)))
    for name in np.unique(rows.device):
        chosen = np.flatnonzero(rows.device == name)
        part, device = rows[chosen], rows.devices[str(name)]
        prior = predict_prior(part.quantities, device.peaks)
        booster = BoostedPrior(device.peaks, device.sms)
        inputs[chosen] = booster.make_inputs(build_features(part.quantities), prior)
        figures[:, chosen] = prior.latency_s, prior.power_w, prior.standby_w
    energy_j = rows.latency_s * rows.power_w
    return TrainingTable(
        rows.operator, rows.device, rows.arch, inputs, rows.latency_s, energy_j, Prior(*figures)
    )


def compute_row_weights(table: TrainingTable) -> Array:
    """Weights of the rows: kernels of little energy among those of an operator on a device have most."""
    weights = np.empty(len(table.energy_j))
    for rows in table.select_groups():
        weights[rows] = compute_weights(table.energy_j[rows], SHARPNESS)
    return weights


def train_models(table: TrainingTable, kept: NDArray[np.bool_], seed: int) -> BoostedModels:
    """Train the models of latency and of energy on some rows."""
    parameters, weights = PARAMETERS | {"seed": seed}, compute_row_weights(table)[kept]
    rows, log_latency = table.inputs[kept], table.log_latency[kept]
    latency = train_trees(parameters, rows, log_latency, ROUNDS, weights)
    rows = add_latency(rows, log_latency)
    energy = train_trees(parameters, rows, table.log_energy[kept], ROUNDS, weights)
    return BoostedModels(latency, energy, {})


def predict_left_out(table: TrainingTable, labels: NDArray[np.str_], seed: int) -> Array:
    """Log of joules of all rows, whose latency is not known, by models that learned no row of the same
    label."""
    log_latency, log_energy = np.empty((2, len(labels)))
    for label in np.unique(labels):
        test = labels == label
        models = train_models(table, ~test, seed)
        log_latency[test] = predict_values(models.latency, table.inputs[test])
        rows = add_latency(table.inputs[test], log_latency[test])
        log_energy[test] = predict_values(models.energy, rows)
    return table.expect_log_energy(log_latency) + log_energy


def score_operators(table: TrainingTable, predicted: Array, left_out: str) -> list[dict[str, Any]]:
    """A line for each operator, and one for all."""
    groups = [rows for rows in table.select_groups() if len(rows) >= FEWEST]
    names = [str(table.operator[rows[0]]) for rows in groups]
    scores = np.array([_score_group(table, rows, predicted) for rows in groups])
    lines = []
    for name in dict.fromkeys(names):
        own = np.array([n == name for n in names])
        lines.append(
            _make_line(name, left_out, scores[own])
            | {"rows": sum(len(g) for g, o in zip(groups, own, strict=True) if o)}
        )
    ratios = np.array([line["ratio"] for line in lines])
    mean = _make_line("all, geometric mean", left_out, scores) | {"rows": len(predicted)}
    mean |= {"ratio": float(np.exp(np.log(ratios).mean())), "bar": {"ratio": BAR}}
    return [*lines, mean | {"pass": mean["ratio"] <= BAR}]


def _score_group(table: TrainingTable, rows: NDArray[np.intp], predicted: Array) -> list[float]:
    """[error of prior, error of model, log pick of prior, log pick of model] of one group of rows."""
    energy = np.log(table.energy_j[rows])
    scores = np.log(table.prior.latency_s * table.prior.power_w)[rows], predicted[rows]
    errors = [float(np.abs(energy - x - np.median(energy - x)).mean()) for x in scores]
    return [*errors, *(float(energy[np.argmin(x)] - energy.min()) for x in scores)]


def _make_line(name: str, left_out: str, scores: Array) -> dict[str, Any]:
    prior, model, prior_pick, pick = scores.mean(axis=0).tolist()
    picks = {"prior_pick": math.exp(prior_pick), "pick": math.exp(pick)}
    errors = {"prior_error": prior, "error": model, "ratio": model / prior}
    return {"operator": name, "left_out": left_out, **errors, **picks}


def read_rows(arguments: Arguments) -> TrainingRows:
    """Collect the simulated rows, read those of the recordings, and leave out what is not wanted."""
    rows = concatenate(
        [collect_rows(arguments.folder, arguments.seed), *map(read_recorded_rows, arguments.recordings)]
    )
    names = np.char.add(np.char.add(rows.operator, " "), rows.device)
    unwanted = np.array([any(text in name for text in arguments.without) for name in names])
    return rows[~unwanted]


def write_models(
    folder: Path, table: TrainingTable, lines: list[dict[str, Any]], arguments: Arguments
) -> None:
    """Train on all rows, and write the models with their card."""
    folder.mkdir(parents=True, exist_ok=True)
    models = train_models(table, np.ones(len(table.energy_j), bool), arguments.seed)
    for name, model in (("latency", models.latency), ("energy", models.energy)):
        text = format_trees(model).encode()
        (folder / f"{name}.json.gz").write_bytes(gzip.compress(text, mtime=0))
    card = {
        "targets": "natural logs: latency over the analytic prior, energy over the prior's at that latency",
        "versions": describe_versions() + f", xgboost {version('xgboost')}, simulator {SIMULATOR_VERSION}",
        "parameters": dict(PARAMETERS) | {"trees": ROUNDS, "sharpness": SHARPNESS},
        "inputs": INPUT_NAMES,
        "rows": len(table.energy_j),
        "operators": sorted(set(table.operator.tolist())),
        "devices": sorted(set(table.device.tolist())),
        "left_out": list(arguments.without),
        "errors": lines,
    }
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n")


def measure(arguments: Arguments) -> dict[str, Any]:
    """Judge the models on what they did not learn from, and write them."""
    table = make_table(read_rows(arguments))
    lines = []
    kinds = np.array([name.split()[0] for name in table.operator])
    for left_out, labels in (("operator", table.operator), ("kind", kinds), ("device", table.arch)):
        lines += score_operators(table, predict_left_out(table, labels, arguments.seed), left_out)
    print(format_lines(COLUMNS, lines))
    if arguments.out:
        write_models(arguments.out, table, lines, arguments)
    return {"lines": lines}


main = make_main(__doc__, measure, {"ratio": BAR}, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
