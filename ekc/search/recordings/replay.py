"""The search of `rounds.py` on a recording: what it tries there, and so what it finds.

A table has no prior and few columns, so a Gaussian process alone is the belief. It is asked for the whole
table after every round; breeding looks the answers up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.search.breeding import Breeder
from ekc.search.models.gaussian import GaussianProcess
from ekc.search.models.promise import Promise
from ekc.search.population import Population
from ekc.search.recordings.recorded_space import RecordedSpace
from ekc.search.recordings.table import Table
from ekc.search.rounds import Pace, Rounds, population_size

ONE_BY_ONE = Pace(share=1 / 100, fewest=1, most=32, random=0.0)
"""A table answers at once, so a trial can know of all before it; a process says itself where it is unsure."""
CAUTION = 1.5
"""The process learns from rows that the search chose, and so is surer than it should be."""
ENOUGH = 0.8
"""Figures above this quantile of those seen are learned as if they were at it: the process is to tell the
good from the better, not the bad from the worse."""


@dataclass
class Replay:
    """The task of making the figure of a table small."""

    recorded: Table
    space: RecordedSpace
    process: GaussianProcess = field(default_factory=GaussianProcess)
    tried: list[int] = field(default_factory=list)
    tell: Callable[[int], None] = lambda tried: None
    """Takes the number of rows tried, after every round."""

    def __post_init__(self) -> None:
        self._features = self.space.features_of(np.arange(len(self.recorded.figures))).astype(np.float64)
        alike = np.zeros(len(self.recorded.figures))
        self._believe(Promise(alike, alike + 1.0, 0.0))

    def make(self, population: Population, row: int, number: int) -> int | None:
        """The row of the table."""
        return int(self.space.rows(population.genes[[row]])[0])

    def promise(self, population: Population) -> NDArray[np.float64]:
        """Of an improvement; before the first figures all are alike."""
        return self._urgency[self.space.rows(population.genes)]

    def rankings(self, population: Population) -> tuple[Promise, ...]:
        """By the promise alone."""
        return (self._promise[self.space.rows(population.genes)],)

    def lean(self, population: Population) -> NDArray[np.float64]:
        """Never asked: a replay has no closing rounds, for nothing says what a row takes of its device."""
        return self.promise(population)

    def correlation(self, population: Population) -> NDArray[np.float64]:
        """By the process."""
        return self.process.correlation(self._features[self.space.rows(population.genes)])

    def measure(self, fresh: Sequence[int], number: int) -> list[float]:
        """Look the figures up."""
        self.tried += fresh
        self.tell(len(self.tried))
        known = self.recorded.figures[self.tried]
        if len(known) > 1 and np.isfinite(known).any():
            self._learn(known)
        return [float(f) for f in self.recorded.figures[list(fresh)]]

    def _learn(self, known: NDArray[np.float64]) -> None:
        """What failed counts as the worst figure seen."""
        logs = np.log(np.where(np.isfinite(known), known, np.nanmax(known)))
        self.process.fit(self._features[self.tried], np.minimum(logs, np.quantile(logs, ENOUGH)))
        mean, spread, _ = self.process.predict(self._features)
        self._believe(Promise(mean, CAUTION * spread, float(logs.min())))

    def _believe(self, promise: Promise) -> None:
        """Of the whole table, worked out once a round: breeding looks it up."""
        self._promise, self._urgency = promise, promise.urgency()

    def on_time(self) -> bool:
        """A recording is never late."""
        return True


def replay(
    recorded: Table,
    space: RecordedSpace,
    trials: int,
    seed: int,
    tell: Callable[[int], None] = lambda tried: None,
) -> list[int]:
    """The rows that a search of `trials` tries, in its order; `tell` takes their number after every round."""
    task = Replay(recorded, space, tell=tell)
    breeder = Breeder(space, np.random.default_rng(seed), population_size(trials))
    Rounds(breeder, task, trials, pace=ONE_BY_ONE).run()
    return task.tried
