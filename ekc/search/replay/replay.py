"""The search on a table of measurements: the rows that it tries, in order.

A table has no analytic prior and few columns, so the surrogate is a Gaussian process alone. It predicts the
whole table after every round; breeding reads its predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.search.cost_model.acquisition import Acquisition, PredictedFigures
from ekc.search.cost_model.feature_process import FeatureProcess
from ekc.search.data.defaults import REPLAY, SEQUENTIAL_ROUNDS
from ekc.search.data.population import Population
from ekc.search.loop.breeding import Breeder
from ekc.search.loop.rounds import SearchLoop, compute_population_size
from ekc.search.replay.table_space import MeasurementTable, TableSpace


class TableAcquisition(Acquisition):
    """Acquisition function of a table, by a Gaussian process that predicts the whole table once a round."""

    def __init__(self, table: MeasurementTable, space: TableSpace) -> None:
        self.space, self.gaussian_process = space, FeatureProcess()
        self._features = space.features.astype(np.float64)
        mean = np.zeros(len(table.figures))
        self._set_figures(PredictedFigures(mean, mean + 1.0, 0.0))

    def score(self, population: Population) -> NDArray[np.float64]:
        """Score genomes by expected improvement; equal before the first figures."""
        return self._scores[self.space.find_rows(population.genes)]

    def predict_figures(self, population: Population) -> tuple[PredictedFigures, ...]:
        """Predict the figure of the table."""
        return (self._figures[self.space.find_rows(population.genes)],)

    def predict_correlation(self, population: Population) -> NDArray[np.float64]:
        """Predict correlations by the Gaussian process."""
        rows = self.space.find_rows(population.genes)
        return self.gaussian_process.predict_correlation(self._features[rows])

    def learn(self, rows: Sequence[int], figures: NDArray[np.float64]) -> None:
        """Learn the figures of rows. A failed row counts as the worst figure so far."""
        logs = np.log(np.where(np.isfinite(figures), figures, np.nanmax(figures)))
        clipped = np.minimum(logs, np.quantile(logs, REPLAY.clip_quantile))
        self.gaussian_process.fit(self._features[rows], clipped)
        mean, std = self.gaussian_process.predict(self._features)
        self._set_figures(PredictedFigures(mean, REPLAY.std_scale * std, float(logs.min())))

    def _set_figures(self, figures: PredictedFigures) -> None:
        """Keep the predictions and the scores of the whole table for one round."""
        self._figures, self._scores = figures, figures.score()


@dataclass
class ReplayTask:
    """The task of finding the row of the least figure."""

    table: MeasurementTable
    space: TableSpace
    tried_rows: list[int] = field(default_factory=list)
    """Rows measured so far, in order."""
    on_progress: Callable[[int], None] = lambda tried: None
    """Called with the number of rows tried, after every round."""

    def __post_init__(self) -> None:
        self.acquisition = TableAcquisition(self.table, self.space)

    def make_candidate(self, population: Population, row: int, round_number: int) -> int | None:
        """Return the row of the table."""
        return int(self.space.find_rows(population.genes[[row]])[0])

    def measure(self, candidates: Sequence[int], round_number: int) -> list[float]:
        """Read the figures of rows and learn from them."""
        self.tried_rows += candidates
        self.on_progress(len(self.tried_rows))
        measured = self.table.figures[self.tried_rows]
        if len(measured) > 1 and np.isfinite(measured).any():
            self.acquisition.learn(self.tried_rows, measured)
        return [float(f) for f in self.table.figures[list(candidates)]]

    def can_continue(self) -> bool:
        """Reading a table takes no time."""
        return True


def replay_search(
    table: MeasurementTable,
    space: TableSpace,
    trials: int,
    seed: int,
    on_progress: Callable[[int], None] = lambda tried: None,
) -> list[int]:
    """Search a table. Returns the rows tried, in order; `on_progress` gets their number after every round."""
    task = ReplayTask(table, space, on_progress=on_progress)
    breeder = Breeder(space, np.random.default_rng(seed), compute_population_size(trials))
    SearchLoop(breeder, task, SEQUENTIAL_ROUNDS).run(trials)
    return task.tried_rows
