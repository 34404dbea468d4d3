"""The search of `rounds.py` on a recording: what it tries there, and so what it finds.

A table has no prior and few columns, so a Gaussian process alone is the belief. It is asked for the whole
table after every round; breeding looks the answers up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.search.cost_model.acquisition import Acquisition
from ekc.search.cost_model.gaussian_process import GaussianProcess
from ekc.search.data.population import Population
from ekc.search.loop.breeding import Breeder
from ekc.search.loop.generations import RoundPolicy, SearchLoop, compute_population_size
from ekc.search.replay.table_space import MeasurementTable, TableSpace

SEQUENTIAL_POLICY = RoundPolicy(round_share=1 / 100, min_trials=1, max_trials=32, random_share=0.0)
"""A table answers at once, so a trial can know of all before it; a process says itself where it is unsure."""
STD_SCALE = 1.5
"""The process learns from rows that the search chose, and so is surer than it should be."""
CLIP_QUANTILE = 0.8
"""Figures above this quantile of those seen are learned as if they were at it: the process is to tell the
good from the better, not the bad from the worse."""


@dataclass
class ReplayTask:
    """The task of making the figure of a table small."""

    table: MeasurementTable
    space: TableSpace
    gaussian_process: GaussianProcess = field(default_factory=GaussianProcess)
    tried_rows: list[int] = field(default_factory=list)
    on_progress: Callable[[int], None] = lambda tried: None
    """Takes the number of rows tried, after every round."""

    def __post_init__(self) -> None:
        self._features = self.space.get_row_features(np.arange(len(self.table.figures))).astype(np.float64)
        alike = np.zeros(len(self.table.figures))
        self._set_acquisition(Acquisition(alike, alike + 1.0, 0.0))

    def make_candidate(self, population: Population, row: int, round_number: int) -> int | None:
        """The row of the table."""
        return int(self.space.find_rows(population.genes[[row]])[0])

    def score_population(self, population: Population) -> NDArray[np.float64]:
        """Of an improvement; before the first figures all are alike."""
        return self._scores[self.space.find_rows(population.genes)]

    def compute_acquisitions(self, population: Population) -> tuple[Acquisition, ...]:
        """By the promise alone."""
        return (self._acquisition[self.space.find_rows(population.genes)],)

    def score_tie_breaks(self, population: Population) -> NDArray[np.float64]:
        """Never asked: a replay has no closing rounds, for nothing says what a row takes of its device."""
        return self.score_population(population)

    def predict_correlation(self, population: Population) -> NDArray[np.float64]:
        """By the process."""
        return self.gaussian_process.predict_correlation(
            self._features[self.space.find_rows(population.genes)]
        )

    def measure(self, candidates: Sequence[int], round_number: int) -> list[float]:
        """Look the figures up."""
        self.tried_rows += candidates
        self.on_progress(len(self.tried_rows))
        known = self.table.figures[self.tried_rows]
        if len(known) > 1 and np.isfinite(known).any():
            self._fit_process(known)
        return [float(f) for f in self.table.figures[list(candidates)]]

    def _fit_process(self, figures: NDArray[np.float64]) -> None:
        """What failed counts as the worst figure seen."""
        logs = np.log(np.where(np.isfinite(figures), figures, np.nanmax(figures)))
        self.gaussian_process.fit(
            self._features[self.tried_rows], np.minimum(logs, np.quantile(logs, CLIP_QUANTILE))
        )
        mean, spread, _ = self.gaussian_process.predict(self._features)
        self._set_acquisition(Acquisition(mean, STD_SCALE * spread, float(logs.min())))

    def _set_acquisition(self, acquisition: Acquisition) -> None:
        """Of the whole table, worked out once a round: breeding looks it up."""
        self._acquisition, self._scores = acquisition, acquisition.score()

    def can_continue(self) -> bool:
        """A recording is never late."""
        return True


def replay_search(
    table: MeasurementTable,
    space: TableSpace,
    trials: int,
    seed: int,
    on_progress: Callable[[int], None] = lambda tried: None,
) -> list[int]:
    """The rows that a search of `trials` tries, in its order; `tell` takes their number after every round."""
    task = ReplayTask(table, space, on_progress=on_progress)
    breeder = Breeder(space, np.random.default_rng(seed), compute_population_size(trials))
    SearchLoop(breeder, task, trials, policy=SEQUENTIAL_POLICY).run()
    return task.tried_rows
