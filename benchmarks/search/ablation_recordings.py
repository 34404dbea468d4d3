"""The variants of `ablation.py` on recorded spaces: replays with another model or another population.

A replay uses its Gaussian process alone (`ekc/search/replay/replay.py`), so that is the default here. The
trees alone and both models together are the variants."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.recordings import RECORDINGS, Recording, read
from benchmarks.search.ablation_variants import POPULATIONS
from benchmarks.search.paper_runs import DEFAULT
from benchmarks.search.quality import compute_quality
from ekc.search.cost_model.feature_process import FeatureProcess
from ekc.search.cost_model.xgboost_model import ResidualModel
from ekc.search.data.defaults import SEQUENTIAL_ROUNDS
from ekc.search.loop.breeding import Breeder
from ekc.search.loop.rounds import SearchLoop, compute_population_size
from ekc.search.replay.replay import ReplayTask
from ekc.search.replay.table_space import TableSpace

Array = NDArray[np.float64]


class TreesAsProcess(FeatureProcess):
    """The boosted trees with the interface of a Gaussian process. The standard deviation is constant: the
    root mean squared error of predictions of rows before they were measured."""

    def __init__(self) -> None:
        super().__init__()
        self._model, self._squares, self._count = ResidualModel(0), [0.25], 0

    def fit(self, rows: Array, targets: Array) -> None:
        """Learn from all rows. The last ones are new: their prediction errors count first."""
        new = slice(self._count, None)
        if self._count and self._model.row_count:
            predicted = self._model.predict(rows[new].astype(np.float32), np.ones(len(rows[new])))
            self._squares += np.square(np.log(predicted) - targets[new]).tolist()
        self._count, self._model = len(rows), ResidualModel(0)
        least = float(targets.min())
        figures = np.exp(targets - least)
        for row, figure in zip(rows.astype(np.float32), figures.tolist(), strict=True):
            self._model.add_row(row, math.exp(-least), figure, figure)
        self._model.fit()

    def predict(self, rows: Array) -> tuple[Array, Array]:
        """(mean, standard deviation) of the target at each row."""
        mean = np.log(self._model.predict(rows.astype(np.float32), np.ones(len(rows))))
        return mean, np.full(len(rows), math.sqrt(np.mean(self._squares)))


class ProcessAndTrees(FeatureProcess):
    """The mean of the process and the trees. Their distance is part of the standard deviation, as in
    `Surrogate`."""

    def __init__(self) -> None:
        super().__init__()
        self._trees = TreesAsProcess()

    def fit(self, rows: Array, targets: Array) -> None:
        """Fit both models."""
        super().fit(rows, targets)
        self._trees.fit(rows, targets)

    def predict(self, rows: Array) -> tuple[Array, Array]:
        """(mean, standard deviation) of the target at each row."""
        mean, std = super().predict(rows)
        trees, _ = self._trees.predict(rows)
        return (mean + trees) / 2, np.sqrt(std**2 + ((trees - mean) / 2) ** 2)


MODELS: dict[str, Callable[[], FeatureProcess]] = {
    "trees alone": TreesAsProcess,
    "trees and process": ProcessAndTrees,
}


class RecordedPlace:
    """A recording, and the file of its runs."""

    def __init__(self, recording: Recording, data: Path, folder: Path) -> None:
        self.operator, self.device_name = recording.name, "recorded"
        name = "".join(c if c.isalnum() else "-" for c in recording.name)
        self.log = folder / f"recorded-{name}.jsonl"
        self._recording, self._data = recording, data

    def get_trials(self, trials: int) -> int:
        """Trials of a run: those of the recording, for any `trials` of the other runs."""
        return self._recording.trials

    def supports(self, name: str) -> bool:
        """Whether the variant differs from the default here."""
        return name in (DEFAULT, *MODELS, *POPULATIONS)

    def run(self, name: str, seed: int, trials: int, objective: str = "latency") -> dict[str, Any]:
        """Run one replay. A recording is searched for the least latency alone."""
        table = read(self._data, self._recording)
        space = TableSpace(table)
        start, wall_start = time.process_time(), time.monotonic()
        task = ReplayTask(table, space)
        task.acquisition.gaussian_process = MODELS.get(name, FeatureProcess)()
        size = POPULATIONS.get(name, compute_population_size(trials))
        breeder = Breeder(space, np.random.default_rng(seed), size)
        SearchLoop(breeder, task, SEQUENTIAL_ROUNDS).run(trials)
        ratio = compute_quality(table, task.tried_rows, trials)
        return {
            "latency_s": ratio,
            "without_luck_s": ratio,
            "timed": len(task.tried_rows),
            "bred": breeder.repaired_count,
            "search_s": time.process_time() - start,
            "measuring_s": 0.0,
            "wall_s": time.monotonic() - wall_start,
            "course": hashlib.sha256(json.dumps(task.tried_rows).encode()).hexdigest()[:16],
        }


def make_recorded_places(data: Path, folder: Path) -> list[RecordedPlace]:
    """Make a place of every recording."""
    return [RecordedPlace(r, data, folder) for r in RECORDINGS]
