"""Breeding: from scored genomes to the next, a population at a time.

How a run searches. `Method()` is what `ekc.tune` does; the others exist to be compared with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ekc.errors import InvalidInput
from ekc.search.data.population import Population

POPULATION = 16384
GENERATIONS = 3
CROSSOVER_SHARE, MUTATION_SHARE = 0.4, 0.4
"""Shares of each new generation; the rest is drawn afresh."""

ScoreFunction = Callable[[Population], NDArray[np.float64]]
"""Lower is better."""


class SearchSpace(Protocol):
    """What the breeder needs of a space. It never sees an operator or a tree."""

    def sample(self, random: np.random.Generator, count: int) -> Population:
        """Random genomes."""

    def cross(self, random: np.random.Generator, mothers: Population, fathers: Population) -> Population:
        """Children of pairs."""

    def mutate(self, random: np.random.Generator, parents: Population) -> Population:
        """Changed copies."""

    def repair(self, random: np.random.Generator, population: Population) -> tuple[Population, Counter[str]]:
        """The legal, mended genomes, and why the others were dropped."""

    def compute_keys(self, population: Population) -> NDArray[np.int64]:
        """A number per genome, equal for equal genomes."""


@dataclass
class Breeder:
    """Keeps the random stream and counts what was dropped."""

    space: SearchSpace
    random: np.random.Generator
    population_size: int = POPULATION
    has_crossover: bool = True
    """Whether genomes are crossed; without, all that change are mutated."""
    refusals: Counter[str] = field(default_factory=Counter)
    bred_count: int = 0
    """Genomes bred, repaired and scored so far."""
    repaired_count: int = 0
    """Genomes that went through repair so far, legal afterwards or not."""

    def sample(self, count: int) -> Population:
        """Random legal genomes, each once."""
        return self._make_legal(self.space.sample(self.random, count))

    def make_empty(self) -> Population:
        """The empty population."""
        return self.space.sample(self.random, 0)

    def evolve(
        self, parents: Population | None, score: ScoreFunction
    ) -> tuple[Population, NDArray[np.float64]]:
        """Some generations on the models' scores; the last population, best first, empty if none is legal."""
        current = (
            self.sample(self.population_size)
            if parents is None
            else self._drop_duplicates(parents + self.sample(self.population_size // 2))
        )
        scores, keys = self._score_population(current, score), self.space.compute_keys(current)
        for _ in range(GENERATIONS if len(current) else 0):
            children = self._repair(self._make_children(current, scores))
            own = self.space.compute_keys(children)
            fresh = _find_first_occurrences(np.concatenate([keys, own]), len(keys))
            children = children[fresh]
            current, scores = (
                current + children,
                np.concatenate([scores, self._score_population(children, score)]),
            )
            best = np.argsort(scores, kind="stable")[: self.population_size]
            current, scores, keys = current[best], scores[best], np.concatenate([keys, own[fresh]])[best]
        return current, scores

    def add_neighbours(self, elites: Population, count: int) -> Population:
        """Genomes and about `count` legal neighbours of theirs."""
        if not len(elites):
            return elites
        many = elites[np.resize(np.arange(len(elites)), count)]
        return elites + self._make_legal(self.space.mutate(self.random, many))

    def _make_children(self, parents: Population, scores: NDArray[np.float64]) -> Population:
        crossed, mutated = (
            int(self.population_size * CROSSOVER_SHARE),
            int(self.population_size * MUTATION_SHARE),
        )
        order = np.argsort(scores, kind="stable")
        a, b = self._pick_parents(order, crossed), self._pick_parents(order, crossed)
        mixed = self.space.cross(self.random, parents[a], parents[b]) if self.has_crossover else parents[a]
        children = self.space.mutate(self.random, mixed)
        changed = self.space.mutate(self.random, parents[self._pick_parents(order, mutated)])
        return children + changed + self.space.sample(self.random, self.population_size - crossed - mutated)

    def _pick_parents(self, order: NDArray[np.intp], count: int) -> NDArray[np.intp]:
        """Parents by rank: the better, the likelier."""
        return order[(self.random.random(count) ** 2 * len(order)).astype(np.int64)]

    def _make_legal(self, population: Population) -> Population:
        return self._drop_duplicates(self._repair(population))

    def _repair(self, population: Population) -> Population:
        legal, dropped = self.space.repair(self.random, population)
        self.refusals.update(dropped)
        self.repaired_count += len(population)
        return legal

    def _drop_duplicates(self, population: Population) -> Population:
        return population[_find_first_occurrences(self.space.compute_keys(population))]

    def _score_population(self, population: Population, score: ScoreFunction) -> NDArray[np.float64]:
        self.bred_count += len(population)
        return score(population)


def _find_first_occurrences(keys: NDArray[np.int64], earlier_count: int = 0) -> NDArray[np.intp]:
    """Where keys stand for the first time, in order; counted from the end of the `known` ones before them."""
    _, first = np.unique(keys, return_index=True)
    return np.sort(first[first >= earlier_count]) - earlier_count


@dataclass(frozen=True)
class SearchMethod:
    """What a run does at the three places where it learns or breeds."""

    proposals: Literal["bred", "mutated", "drawn"] = "bred"
    """Crossed and mutated, never crossed, or every schedule drawn at random."""
    metered_share: float | None = None
    """Share of the timed kernels that is metered; 1 meters all, None adapts it to the energy model."""
    power_source: Literal["learned", "constant"] = "learned"
    """Where the energies come from that nobody metered: the model, or latency x the median power."""

    def __post_init__(self) -> None:
        if self.metered_share is not None and not 0 < self.metered_share <= 1:
            raise InvalidInput(f"metered: {self.metered_share} is outside 0 to 1; 1 meters every kernel")

    def make_breeder(self, space: SearchSpace, random: np.random.Generator, population_size: int) -> Breeder:
        """What proposes the schedules to try."""
        if self.proposals == "drawn":
            return RandomSampler(space, random, population_size)
        return Breeder(space, random, population_size, has_crossover=self.proposals == "bred")


DEFAULT_METHOD = SearchMethod()


class RandomSampler(Breeder):
    """Random search behind the face of a breeder: legal draws, in the order they were drawn."""

    def evolve(
        self, parents: Population | None, score: ScoreFunction
    ) -> tuple[Population, NDArray[np.float64]]:
        """Fresh draws; neither parents nor score matter."""
        drawn = self.sample(self.population_size)
        return drawn, np.zeros(len(drawn))
