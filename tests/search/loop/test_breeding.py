"""Breeding on a toy space with a known optimum."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from ekc.search.data.defaults import BREEDING, BreedingSettings
from ekc.search.data.options import RANDOM_SEARCH
from ekc.search.data.population import Population
from ekc.search.loop.breeding import Breeder

WIDTH, VALUES = 8, 64
IDEAL = np.array([5, 60, 31, 0, 63, 17, 44, 8])


class Toy:
    """Eight independent genes, one structure, everything legal but a first gene of 13."""

    def sample(self, random: np.random.Generator, count: int) -> Population:
        return Population(np.zeros(count, dtype=np.int64), random.integers(0, VALUES, (count, WIDTH)))

    def cross(self, random: np.random.Generator, mothers: Population, fathers: Population) -> Population:
        from_father = random.random(mothers.genes.shape) < 0.5
        return Population(mothers.structure, np.where(from_father, fathers.genes, mothers.genes))

    def mutate(self, random: np.random.Generator, parents: Population) -> Population:
        genes = parents.genes.copy()
        rows, column = np.arange(len(genes)), random.integers(0, WIDTH, len(genes))
        step = random.integers(-3, 4, len(genes))
        genes[rows, column] = np.clip(genes[rows, column] + step, 0, VALUES - 1)
        return Population(parents.structure, genes)

    def repair(self, random: np.random.Generator, population: Population) -> tuple[Population, Counter[str]]:
        unlucky = population.genes[:, 0] == 13
        return population[~unlucky], Counter(thirteen=int(unlucky.sum()))

    def compute_keys(self, population: Population) -> NDArray[np.int64]:
        return population.genes @ VALUES ** np.arange(WIDTH, dtype=np.int64)


def distance(population: Population) -> NDArray[np.float64]:
    """A separable function: 0 at the ideal."""
    return np.abs(population.genes - IDEAL).sum(axis=1).astype(np.float64)


def test_breeding_finds_optimum_that_random_search_misses() -> None:
    breeder = Breeder(Toy(), np.random.default_rng(0), population_size=128)
    parents: Population | None = None
    for _ in range(40):
        parents, scores = breeder.evolve(parents, distance)
        if scores[0] == 0:
            break
    assert scores[0] == 0
    np.testing.assert_array_equal(parents.genes[0], IDEAL)
    random = Toy().sample(np.random.default_rng(0), breeder.scored_count)
    assert distance(random).min() > 30


def test_evolve_returns_sorted_best_and_counts_refusals() -> None:
    breeder = Breeder(Toy(), np.random.default_rng(1), population_size=64)
    parents, first = breeder.evolve(None, distance)
    again, second = breeder.evolve(parents, distance)
    assert (np.diff(second) >= 0).all()
    assert second[0] <= first[0]
    np.testing.assert_array_equal(second, distance(again))
    assert len(np.unique(Toy().compute_keys(again))) == len(again) <= 64
    assert breeder.refusals["thirteen"] > 0
    assert (again.genes[:, 0] != 13).all()


def test_evolve_scores_each_new_genome_once() -> None:
    """Kept genomes and duplicates within a generation are not scored again; dropped ones may be."""
    kept: dict[int, float] = {}
    scored: list[int] = []

    def score(population: Population) -> NDArray[np.float64]:
        nonlocal kept
        scores, keys = distance(population), Toy().compute_keys(population).tolist()
        assert len(set(keys)) == len(keys)
        assert not set(keys) & set(kept)
        scored.extend(keys)
        all_scores = kept | dict(zip(keys, scores.tolist(), strict=True))
        kept = dict(sorted(all_scores.items(), key=_by_score)[:64])
        return scores

    breeder = Breeder(Toy(), np.random.default_rng(2), population_size=64)
    last, _ = breeder.evolve(None, score)
    assert breeder.scored_count == len(scored) > 64
    assert Toy().compute_keys(last).tolist() == list(kept)


def _by_score(entry: tuple[int, float]) -> float:
    return entry[1]


def test_evolve_is_reproducible_by_seed() -> None:
    runs = [
        Breeder(Toy(), np.random.default_rng(s), population_size=64).evolve(None, distance)[0]
        for s in (3, 3, 4)
    ]
    np.testing.assert_array_equal(runs[0].genes, runs[1].genes)
    assert not np.array_equal(runs[0].genes, runs[2].genes)


def test_evolve_without_legal_genomes_is_empty() -> None:
    class Barren(Toy):
        def repair(
            self, random: np.random.Generator, population: Population
        ) -> tuple[Population, Counter[str]]:
            return population[:0], Counter(barren=len(population))

    breeder = Breeder(Barren(), np.random.default_rng(0), population_size=64)
    assert [len(part) for part in breeder.evolve(None, distance)] == [0, 0]
    assert breeder.refusals == {"barren": 64}


class CountingToy(Toy):
    """Counts the genomes that were crossed and mutated."""

    def __init__(self) -> None:
        self.crossed = self.mutated = 0

    def cross(self, random: np.random.Generator, mothers: Population, fathers: Population) -> Population:
        self.crossed += len(mothers)
        return super().cross(random, mothers, fathers)

    def mutate(self, random: np.random.Generator, parents: Population) -> Population:
        self.mutated += len(parents)
        return super().mutate(random, parents)


@pytest.mark.parametrize(
    ("settings", "crossed", "mutated"),
    [
        (BREEDING, 3 * 25, 3 * 50),
        (replace(BREEDING, crossover_share=0.0, mutation_share=0.8), 0, 3 * 51),
        (RANDOM_SEARCH.breeding, 0, 0),
    ],
    ids=["default", "no crossover", "random search"],
)
def test_breeding_settings_set_crossover_and_mutation(
    settings: BreedingSettings, crossed: int, mutated: int
) -> None:
    space = CountingToy()
    found, scores = Breeder(space, np.random.default_rng(0), 64, settings).evolve(None, distance)
    assert len(found) == len(scores) > 30
    assert (space.crossed, space.mutated) == (crossed, mutated)
