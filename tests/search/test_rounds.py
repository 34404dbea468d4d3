"""How rounds pick what to try: every genome once, what made nothing replaced, batches that spread out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from numpy.typing import NDArray

from ekc.search.cost_model.acquisition import Acquisition
from ekc.search.data.defaults import PARALLEL_ROUNDS, RoundSettings
from ekc.search.data.population import Population
from ekc.search.loop.breeding import Breeder
from ekc.search.loop.generations import SearchLoop

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


class StubTask:
    """Believes in small sums of genes, and that near ones are alike; odd first genes make nothing."""

    def __init__(self, ranked: bool = True) -> None:
        self.batches: list[list[tuple[int, int]]] = []
        self.asked: list[tuple[int, int]] = []
        self.ranked = ranked

    def make_candidate(self, population: Population, row: int, round_number: int) -> tuple[int, int] | None:
        a, b = population.genes[row].tolist()
        self.asked.append((a, b))
        return None if a % 2 else (a, b)

    def score_population(self, population: Population) -> NDArray[np.float64]:
        return self._make_acquisition(population).score()

    def compute_acquisitions(self, population: Population) -> tuple[Acquisition, ...]:
        return (self._make_acquisition(population),) * 2 if self.ranked else ()

    def score_tie_breaks(self, population: Population) -> NDArray[np.float64]:
        return -self.score_population(population)

    def _make_acquisition(self, population: Population) -> Acquisition:
        mean = population.genes.sum(axis=1) / 100
        return Acquisition(mean, np.full(len(mean), 0.3), 0.0)

    def predict_correlation(self, population: Population) -> NDArray[np.float64]:
        apart = np.abs(population.genes[:, None, :] - population.genes[None, :, :]).sum(axis=2)
        return np.asarray(np.exp(-apart / 2) + 1e-3 * np.eye(len(population)))

    def measure(self, candidates: Sequence[tuple[int, int]], round_number: int) -> list[float]:
        self.batches.append(list(candidates))
        return [float(a + b) for a, b in candidates]

    def can_continue(self) -> bool:
        return True


def searched(trials: int, ranked: bool = True) -> StubTask:
    task = StubTask(ranked)
    SearchLoop(
        Breeder(Line(), np.random.default_rng(0), population_size=512), task, trials, policy=ALL_RANKED
    ).run()
    return task


def test_every_genome_is_asked_for_once_and_what_makes_nothing_is_replaced() -> None:
    task = searched(40)
    assert len(task.asked) == len(set(task.asked))
    assert sum(map(len, task.batches)) == 40
    assert any(a % 2 for a, _ in task.asked)


def test_a_space_that_is_used_up_ends_the_search() -> None:
    """Half of its 144 genomes make nothing."""
    task = searched(500)
    assert sorted(pair for batch in task.batches for pair in batch) == [
        (a, b) for a in range(0, VALUES, 2) for b in range(VALUES)
    ]


def test_a_batch_spreads_over_what_is_alike_whichever_ranking_picked() -> None:
    """Two rankings share a batch of five: the second does not pick what lies beside the first's."""
    batch = np.array(searched(40).batches[1])
    apart = np.abs(batch[:, None, :] - batch[None, :, :]).sum(axis=2) + 99 * np.eye(len(batch), dtype=int)
    assert len(batch) == 5
    assert apart.min() > 1


@pytest.mark.parametrize("trials", [38, 40, 42])
def test_the_closing_rounds_try_what_is_lean(trials: int) -> None:
    """The last quarter of the trials: of what was not tried, where the promise is least."""
    task, few = StubTask(), trials // 4
    pace = replace(ALL_RANKED, closing_share=0.25)
    SearchLoop(
        Breeder(Line(), np.random.default_rng(0), population_size=512), task, trials, policy=pace
    ).run()
    done = list(accumulate(map(len, task.batches)))
    assert done[-1] == trials
    assert trials - few in done
    tried = [pair for batch in task.batches for pair in batch]
    left = {(a, b) for a in range(0, VALUES, 2) for b in range(VALUES)} - set(tried[:-few])
    assert sorted(map(sum, tried[-few:])) == sorted(map(sum, left))[-few:]


def test_a_tuning_run_closes() -> None:
    assert PARALLEL_ROUNDS.closing_share > 0


@pytest.mark.parametrize("trials", [50, 64, 71])
def test_a_batch_of_nothing_new_ends_no_search_that_others_could_go_on_with(trials: int) -> None:
    """Of 72 that can be tried: a batch of one that is to be drawn at random may know all that it draws."""
    task = StubTask()
    search = SearchLoop(
        Breeder(Line(), np.random.default_rng(0), population_size=512), task, trials, settings=PARALLEL_ROUNDS
    )
    search.run()
    assert sum(map(len, task.batches)) == trials
    assert not search.stop_reason


def test_without_a_ranking_genomes_are_tried_as_they_come() -> None:
    task = searched(24, ranked=False)
    drawn = Breeder(Line(), np.random.default_rng(0), population_size=512).evolve(
        None, StubTask().score_population
    )[0]
    first = [(a, b) for a, b in drawn.genes.tolist() if a % 2 == 0]
    assert task.batches[0][:2] == first[:2]
