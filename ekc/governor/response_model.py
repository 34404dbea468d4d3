"""A model that predicts time and energy of a job over the SM clock, before any other clock was tried.

As in GPOEO (arXiv 2201.01684), boosted trees have counters and the ratio of a clock to the default's as
inputs, and time and energy relative to the default as targets. Here the readings of the default (use of SMs
and memory, watts) are inputs too. GPOEO's two models of the memory clock are left out: memory clocks are few,
and the governor measures them.

The governor takes the prediction as the first clock to try, and nothing else: readings decide from there on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ekc.boosted_trees import format_trees, parse_trees, predict_values
from ekc.errors import InvalidInput
from ekc.governor.model_file import TARGETS, ModelDescription, ModelFile, write_model_file
from ekc.governor.readings import JobReading
from ekc.governor.response_curve import compute_lengthening, compute_reduction
from ekc.governor.samples import Values

READINGS = ("sm_util", "memory_util", "watts")
"""Figures of a reading at the default that are inputs of the trees, after the counters."""


@dataclass(frozen=True)
class ResponseModel:
    """The trees of one kind of GPU."""

    description: ModelDescription
    boosters: Mapping[str, Any]
    """XGBoost models by `TARGETS`."""
    gpu_count: int = 1
    """GPUs that a reading is of; its watts are those of all together."""

    def build_inputs(self, counters: Mapping[str, float], reading: JobReading) -> tuple[float, ...]:
        """The inputs of the trees but the clock ratio: the counters that the model needs, then `READINGS`."""
        figures = (reading.sm_util, reading.memory_util, reading.watts / self.gpu_count)
        return (*(float(counters[name]) for name in self.description.counters), *figures)

    def predict(self, inputs: tuple[float, ...], ratio: Values) -> tuple[Values, Values]:
        """Time and energy relative to the default at each ratio of the SM clock to the default's."""
        table = np.column_stack([np.tile(inputs, (len(ratio), 1)), ratio])
        time, energy = (predict_values(self.boosters[target], table) for target in TARGETS)
        return np.exp(time), np.exp(energy)

    def predict_clocks(
        self, counters: Mapping[str, float], reading: JobReading, clocks_mhz: Values, default_mhz: float
    ) -> tuple[Values, Values]:
        """Slowdown and saving, as shares of the default's time and energy, at each SM clock; both 0 from
        `default_mhz` on. `counters`: those of the description, 0 to 100; `reading`: that of the default."""
        ratio = np.array(self.description.clock_ratios)
        time, energy = self.predict(self.build_inputs(counters, reading), ratio)
        power = energy / time
        slowdown = _fit_polynomial(
            compute_lengthening(ratio, 1.0),
            time / time[-1] - 1,
            compute_lengthening(clocks_mhz, default_mhz),
            degree=2,
        )
        power_change = _fit_polynomial(
            compute_reduction(ratio, 1.0),
            power / power[-1] - 1,
            compute_reduction(clocks_mhz, default_mhz),
            degree=3,
        )
        return slowdown, 1 - (1 + slowdown) * (1 + power_change)


def _fit_polynomial(x: Values, y: Values, at: Values, degree: int) -> Values:
    """Values at `at` of a polynomial without constant that is fitted to y / x.

    Trees are constant between two clocks of their training rows. The governor chooses clocks near the
    default. A fit that weighs all clocks equally follows the lowest ones and predicts a third too much
    slowdown near the default.
    """
    positive = x > 0
    rows = x[positive][:, None] ** np.arange(degree)
    # A small ridge term: the highest clocks alone do not determine the curvature.
    solved = np.linalg.solve(rows.T @ rows + 1e-3 * np.eye(degree), rows.T @ (y[positive] / x[positive]))
    return np.asarray(at[:, None] ** np.arange(1, degree + 1) @ solved)


def load_model(file: ModelFile, gpu_count: int = 1) -> ResponseModel:
    """Build the trees of a file, for readings of so many GPUs together. Raises `InvalidInput` where the
    installed XGBoost refuses them, or cannot be imported."""
    try:
        boosters = {target: parse_trees(text) for target, text in file.trees.items()}
    except (ImportError, ValueError) as problem:
        raise InvalidInput(f"--model {file.path}: XGBoost refuses its trees ({problem})") from None
    return ResponseModel(file.description, boosters, gpu_count)


def save_model(model: ResponseModel, path: Path) -> None:
    """Write a model to a file that `read_model_file` reads. Raises `OSError`."""
    trees = {target: format_trees(booster) for target, booster in model.boosters.items()}
    write_model_file(path, model.description, trees)
