"""Breeding: from scored genomes to the next, a population at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ekc.search.population import Population

POPULATION = 16384
GENERATIONS = 3
CROSSED, MUTATED = 0.4, 0.4
"""Shares of each new generation; the rest is drawn afresh."""

Score = Callable[[Population], NDArray[np.float64]]
"""Lower is better."""


class Genetics(Protocol):
    """What the breeder needs of a space. It never sees an operator or a tree."""

    def draw(self, random: np.random.Generator, count: int) -> Population:
        """Random genomes."""

    def cross(self, random: np.random.Generator, mothers: Population, fathers: Population) -> Population:
        """Children of pairs."""

    def mutate(self, random: np.random.Generator, parents: Population) -> Population:
        """Changed copies."""

    def repair(self, random: np.random.Generator, population: Population) -> tuple[Population, Counter[str]]:
        """The legal, mended genomes, and why the others were dropped."""

    def keys(self, population: Population) -> NDArray[np.int64]:
        """A number per genome, equal for equal genomes."""


@dataclass
class Breeder:
    """Keeps the random stream and counts what was dropped."""

    space: Genetics
    random: np.random.Generator
    size: int = POPULATION
    crossing: bool = True
    """Whether genomes are crossed; without, all that change are mutated."""
    refusals: Counter[str] = field(default_factory=Counter)
    bred: int = 0
    """Genomes bred, repaired and scored so far."""
    repaired: int = 0
    """Genomes that went through repair so far, legal afterwards or not."""

    def draw(self, count: int) -> Population:
        """Random legal genomes, each once."""
        return self._legal(self.space.draw(self.random, count))

    def nobody(self) -> Population:
        """The empty population."""
        return self.space.draw(self.random, 0)

    def evolve(self, parents: Population | None, score: Score) -> tuple[Population, NDArray[np.float64]]:
        """Some generations on the models' scores; the last population, best first, empty if none is legal."""
        current = (
            self.draw(self.size) if parents is None else self._unique(parents + self.draw(self.size // 2))
        )
        scores, keys = self._scored(current, score), self.space.keys(current)
        for _ in range(GENERATIONS if len(current) else 0):
            children = self._repaired(self._children(current, scores))
            own = self.space.keys(children)
            fresh = _first(np.concatenate([keys, own]), len(keys))
            children = children[fresh]
            current, scores = current + children, np.concatenate([scores, self._scored(children, score)])
            best = np.argsort(scores, kind="stable")[: self.size]
            current, scores, keys = current[best], scores[best], np.concatenate([keys, own[fresh]])[best]
        return current, scores

    def around(self, proven: Population, count: int) -> Population:
        """Genomes and about `count` legal neighbours of theirs."""
        if not len(proven):
            return proven
        many = proven[np.resize(np.arange(len(proven)), count)]
        return proven + self._legal(self.space.mutate(self.random, many))

    def _children(self, parents: Population, scores: NDArray[np.float64]) -> Population:
        crossed, mutated = int(self.size * CROSSED), int(self.size * MUTATED)
        order = np.argsort(scores, kind="stable")
        a, b = self._pick(order, crossed), self._pick(order, crossed)
        mixed = self.space.cross(self.random, parents[a], parents[b]) if self.crossing else parents[a]
        children = self.space.mutate(self.random, mixed)
        changed = self.space.mutate(self.random, parents[self._pick(order, mutated)])
        return children + changed + self.space.draw(self.random, self.size - crossed - mutated)

    def _pick(self, order: NDArray[np.intp], count: int) -> NDArray[np.intp]:
        """Parents by rank: the better, the likelier."""
        return order[(self.random.random(count) ** 2 * len(order)).astype(np.int64)]

    def _legal(self, population: Population) -> Population:
        return self._unique(self._repaired(population))

    def _repaired(self, population: Population) -> Population:
        legal, dropped = self.space.repair(self.random, population)
        self.refusals.update(dropped)
        self.repaired += len(population)
        return legal

    def _unique(self, population: Population) -> Population:
        return population[_first(self.space.keys(population))]

    def _scored(self, population: Population, score: Score) -> NDArray[np.float64]:
        self.bred += len(population)
        return score(population)


def _first(keys: NDArray[np.int64], known: int = 0) -> NDArray[np.intp]:
    """Where keys stand for the first time, in order; counted from the end of the `known` ones before them."""
    _, first = np.unique(keys, return_index=True)
    return np.sort(first[first >= known]) - known
