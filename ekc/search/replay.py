"""The search of `rounds.py` on a recording: what it tries there, and so what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.search.belief import Belief, improvement
from ekc.search.breeding import Breeder
from ekc.search.population import Population
from ekc.search.recorded import RecordedSpace
from ekc.search.recordings import Table
from ekc.search.rounds import Rounds, population_size


@dataclass
class Replay:
    """The task of making the figure of a table small."""

    recorded: Table
    space: RecordedSpace
    belief: Belief
    tried: list[int] = field(default_factory=list)

    def make(self, population: Population, row: int, number: int) -> int | None:
        """The row of the table."""
        return int(self.space.rows(population.genes[[row]])[0])

    def rankings(self, population: Population) -> tuple[NDArray[np.float64], ...]:
        """By expected improvement. A recording has no prior, so before the first figures all are alike."""
        mean, spread = self.belief.expect(self.space.features(population), np.ones(len(population)))
        figures = self.recorded.figures[self.tried]
        if not np.isfinite(figures).any():
            return (mean,)
        return (-improvement(mean, spread, float(np.log(np.nanmin(figures)))),)

    def measure(self, fresh: Sequence[int], number: int) -> list[float]:
        """Look the figures up."""
        self.tried += fresh
        figures = self.recorded.figures[list(fresh)]
        features = self.space.features_of(np.array(fresh))
        self.belief.learn(features, np.ones(len(fresh)), figures)
        return [float(f) for f in figures]

    def on_time(self) -> bool:
        """A recording is never late."""
        return True


def replay(recorded: Table, space: RecordedSpace, trials: int, seed: int) -> list[int]:
    """The rows that a search of `trials` tries, in its order."""
    task = Replay(recorded, space, Belief(seed))
    breeder = Breeder(space, np.random.default_rng(seed), population_size(trials))
    Rounds(breeder, task, trials).run()
    return task.tried
