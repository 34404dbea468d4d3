"""The variants of `ablation.py` on recorded spaces: replays with another belief, or another population.

A replay believes its Gaussian process alone (`replay.py`), so that is the default here; the trees alone and
both together are the variants.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ablation_variants import DEFAULT
from ekc.search.breeding import Breeder
from ekc.search.models.gaussian import GaussianProcess
from ekc.search.models.trees import ResidualModel
from ekc.search.recordings.recorded_space import RecordedSpace
from ekc.search.recordings.replay import ONE_BY_ONE, Replay
from ekc.search.rounds import Rounds, population_size
from numpy.typing import NDArray
from recordings import RECORDINGS, Recording, read
from search_quality import quality

Array = NDArray[np.float64]
TREES, BOTH = "trees alone", "both"
POPULATIONS = {"population 512": 512, "population 2,048": 2048, "population 8,192": 8192}


class Trees(GaussianProcess):
    """The boosted trees behind the face of a process. The spread is the same everywhere: how wrong they were
    about rows that they had not seen."""

    def __init__(self) -> None:
        super().__init__()
        self._model, self._squares, self._count = ResidualModel(0), [0.25], 0

    def fit(self, rows: Array, targets: Array, surprises: Array | None = None) -> None:
        """As the process does."""
        new = slice(self._count, None)
        if self._count and self._model.rows:
            foretold = self._model.predict(rows[new].astype(np.float32), np.ones(len(rows[new])))
            self._squares += np.square(np.log(foretold) - targets[new]).tolist()
        self._count, self._model = len(rows), ResidualModel(0)
        figures = np.exp(targets - targets.min())
        self._least = float(targets.min())
        for row, figure in zip(rows.astype(np.float32), figures.tolist(), strict=True):
            self._model.add(row, math.exp(-self._least), figure, figure)
        self._model.fit()

    def predict(self, rows: Array) -> tuple[Array, Array, Array]:
        """As the process does."""
        mean = np.log(self._model.predict(rows.astype(np.float32), np.ones(len(rows))))
        return mean, np.full(len(rows), math.sqrt(np.mean(self._squares))), np.ones(len(rows))


class Both(GaussianProcess):
    """The mean of the process and the trees, and their distance in the spread, as a belief has them."""

    def __init__(self) -> None:
        super().__init__()
        self._trees = Trees()

    def fit(self, rows: Array, targets: Array, surprises: Array | None = None) -> None:
        """As the process does."""
        super().fit(rows, targets, surprises)
        self._trees.fit(rows, targets)

    def predict(self, rows: Array) -> tuple[Array, Array, Array]:
        """As the process does."""
        mean, spread, surprise = super().predict(rows)
        trees, _, _ = self._trees.predict(rows)
        return (mean + trees) / 2, np.sqrt(spread**2 + ((trees - mean) / 2) ** 2), surprise


BELIEFS: dict[str, Callable[[], GaussianProcess]] = {TREES: Trees, BOTH: Both}


class RecordedPlace:
    """A recording, and the file of its runs."""

    def __init__(self, recording: Recording, data: Path, folder: Path) -> None:
        self.operator, self.device_name = recording.name, "recorded"
        name = "".join(c if c.isalnum() else "-" for c in recording.name)
        self.log = folder / f"recorded-{name}.jsonl"
        self._recording, self._data = recording, data

    def trials(self, asked: int) -> int:
        """Of the recording, whatever is asked for elsewhere."""
        return self._recording.trials

    def knows(self, name: str) -> bool:
        """Whether the variant says something here."""
        return name in (DEFAULT, *BELIEFS, *POPULATIONS)

    def run(self, name: str, seed: int, trials: int) -> dict[str, Any]:
        """One replay."""
        recorded = read(self._data, self._recording)
        space = RecordedSpace(recorded)
        began, wall = time.process_time(), time.monotonic()
        task = Replay(recorded, space, process=BELIEFS.get(name, GaussianProcess)())
        size = POPULATIONS.get(name, population_size(trials))
        breeder = Breeder(space, np.random.default_rng(seed), size)
        Rounds(breeder, task, trials, pace=ONE_BY_ONE).run()
        found = quality(recorded, task.tried, trials)
        return {
            "latency_s": found,
            "without_luck_s": found,
            "timed": len(task.tried),
            "bred": breeder.repaired,
            "search_s": time.process_time() - began,
            "measuring_s": 0.0,
            "wall_s": time.monotonic() - wall,
            "course": hashlib.sha256(json.dumps(task.tried).encode()).hexdigest()[:16],
        }


def recorded_places(data: Path, folder: Path) -> list[RecordedPlace]:
    """All recordings."""
    return [RecordedPlace(r, data, folder) for r in RECORDINGS]
