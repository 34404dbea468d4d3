"""The rounds of a search: each genome is tried once, batches are diverse, random search ignores scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from ekc.search.cost_model.acquisition import Acquisition, PredictedFigures
from ekc.search.data.defaults import PARALLEL_ROUNDS, RoundSettings
from ekc.search.data.options import RANDOM_SEARCH
from ekc.search.data.population import Population
from ekc.search.loop.breeding import Breeder
from ekc.search.loop.rounds import SearchLoop

VALUES = 12
ALL_RANKED = RoundSettings(round_share=1 / 8, min_trials=4, max_trials=32, random_share=0.0)


class Line:
    """Two genes of 12 values each; everything is legal."""

    def sample(self, random: np.random.Generator, count: int) -> Population:
        return Population(np.zeros(count, dtype=np.int64), random.integers(0, VALUES, (count, 2)))

    def cross(self, random: np.random.Generator, mothers: Population, fathers: Population) -> Population:
        return Population(mothers.structure, np.stack([mothers.genes[:, 0], fathers.genes[:, 1]], axis=1))

    def mutate(self, random: np.random.Generator, parents: Population) -> Population:
        return self.sample(random, len(parents))

    def repair(self, random: np.random.Generator, population: Population) -> tuple[Population, Counter[str]]:
        return population, Counter()

    def compute_keys(self, population: Population) -> NDArray[np.int64]:
        return np.asarray(population.genes @ np.array([VALUES, 1]))


class StubAcquisition(Acquisition):
    """Predicts small sums of genes, or large ones, and correlated neighbours."""

    def __init__(self, ranked: bool, sign: int) -> None:
        self.ranked, self.sign = ranked, sign

    def score(self, population: Population) -> NDArray[np.float64]:
        return self._predict(population).score()

    def predict_figures(self, population: Population) -> tuple[PredictedFigures, ...]:
        return (self._predict(population),) * 2 if self.ranked else ()

    def _predict(self, population: Population) -> PredictedFigures:
        mean = self.sign * population.genes.sum(axis=1) / 100
        return PredictedFigures(mean, np.full(len(mean), 0.3), 0.0)

    def predict_correlation(self, population: Population) -> NDArray[np.float64]:
        distance = np.abs(population.genes[:, None, :] - population.genes[None, :, :]).sum(axis=2)
        return np.asarray(np.exp(-distance / 2) + 1e-3 * np.eye(len(population)))


class StubTask:
    """A task of the stub acquisition. An odd first gene makes no candidate."""

    def __init__(self, ranked: bool = True, sign: int = 1) -> None:
        self.batches: list[list[tuple[int, int]]] = []
        self.requested: list[tuple[int, int]] = []
        self.acquisition = StubAcquisition(ranked, sign)
        self.stop_reason = ""

    def make_candidate(self, population: Population, row: int, round_number: int) -> tuple[int, int] | None:
        a, b = population.genes[row].tolist()
        self.requested.append((a, b))
        return None if a % 2 else (a, b)

    def measure(self, candidates: Sequence[tuple[int, int]], round_number: int) -> list[float]:
        self.batches.append(list(candidates))
        return [float(a + b) for a, b in candidates]

    def can_continue(self) -> bool:
        return True


def make_breeder() -> Breeder:
    return Breeder(Line(), np.random.default_rng(0), population_size=512)


def searched(trials: int, ranked: bool = True, settings: RoundSettings = ALL_RANKED) -> StubTask:
    task = StubTask(ranked)
    search = SearchLoop(make_breeder(), task, settings)
    search.run(trials)
    task.stop_reason = search.stop_reason
    return task


def test_loop_asks_for_each_genome_once_and_replaces_duplicates() -> None:
    task = searched(40)
    assert len(task.requested) == len(set(task.requested))
    assert sum(map(len, task.batches)) == 40
    assert any(a % 2 for a, _ in task.requested)


def test_exhausted_space_ends_search() -> None:
    """Half of the 144 genomes make no candidate."""
    task = searched(500)
    assert sorted(pair for batch in task.batches for pair in batch) == [
        (a, b) for a in range(0, VALUES, 2) for b in range(VALUES)
    ]


def test_batch_is_diverse_across_acquisitions() -> None:
    """Two acquisition functions share a batch of five: the second picks no neighbour of the first's."""
    batch = np.array(searched(40).batches[1])
    distance = np.abs(batch[:, None, :] - batch[None, :, :]).sum(axis=2) + 99 * np.eye(len(batch), dtype=int)
    assert len(batch) == 5
    assert distance.min() > 1


@pytest.mark.parametrize("trials", [50, 64, 71])
def test_batch_without_new_genomes_is_replaced(trials: int) -> None:
    """With 72 genomes to try, a random batch may have only tried ones."""
    task = searched(trials, settings=PARALLEL_ROUNDS)
    assert sum(map(len, task.batches)) == trials
    assert not task.stop_reason


def test_loop_without_acquisitions_tries_genomes_in_order() -> None:
    task = searched(24, ranked=False)
    bred, _ = make_breeder().evolve(None, StubTask().acquisition.score)
    first = [(a, b) for a, b in bred.genes.tolist() if a % 2 == 0]
    assert task.batches[0][:2] == first[:2]


def test_random_search_ignores_scores() -> None:
    batches = []
    for task in (StubTask(), StubTask(sign=-1)):
        breeder = Breeder(Line(), np.random.default_rng(0), 512, RANDOM_SEARCH.breeding)
        SearchLoop(breeder, task, RANDOM_SEARCH.rounds).run(24)
        batches.append(task.batches)
    assert batches[0] == batches[1]
    assert sum(map(len, batches[0])) == 24
    assert batches[0] != searched(24).batches
