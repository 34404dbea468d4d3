"""Breeding: from a scored population of genomes to the next, by selection, crossover, mutation and repair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.search.data.defaults import BREEDING, BreedingSettings
from ekc.search.data.population import EvolvingSearchSpace, Population, SearchSpace

ScoreFunction = Callable[[Population], NDArray[np.float64]]
"""Scores of genomes; lower is better."""


@dataclass
class Breeder:
    """Breeds populations of a space with one random stream, and counts the genomes that repair refused."""

    space: SearchSpace
    random: np.random.Generator
    population_size: int = BREEDING.max_population
    settings: BreedingSettings = BREEDING
    evolving: EvolvingSearchSpace | None = None
    """The space, if its structures evolve."""
    refusals: Counter[str] = field(default_factory=Counter)
    """Genomes that repair could not make legal, by rule."""
    scored_count: int = 0
    """Legal genomes scored so far."""
    repaired_count: int = 0
    """Genomes that went through repair so far, legal afterwards or not."""

    def sample(self, count: int) -> Population:
        """Sample about `count` legal genomes at random, each once."""
        return self._drop_duplicates(self._repair(self.space.sample(self.random, count)))

    def make_empty(self) -> Population:
        """Make the population without genomes."""
        return self.space.sample(self.random, 0)

    def evolve(
        self, parents: Population | None, score: ScoreFunction
    ) -> tuple[Population, NDArray[np.float64]]:
        """Breed some generations. Returns the last population and its scores, best first; without generations
        the parents and a random population, in that order. Both are empty if no genome is legal."""
        if parents is None:
            current = self.sample(self.population_size)
        else:
            immigrants = self.sample(int(self.settings.immigrant_share * self.population_size))
            edited = self._edit_structures(parents, score)
            current = self._drop_duplicates(edited + parents + immigrants)
        scores, keys = self._score_population(current, score), self.space.compute_keys(current)
        for _ in range(self.settings.generations if len(current) else 0):
            children = self._repair(self._make_children(current, scores))
            child_keys = self.space.compute_keys(children)
            new = _find_first_occurrences(np.concatenate([keys, child_keys]), len(keys))
            children = children[new]
            child_scores = self._score_population(children, score)
            current, scores = current + children, np.concatenate([scores, child_scores])
            best = np.argsort(scores, kind="stable")[: self.population_size]
            current, scores = current[best], scores[best]
            keys = np.concatenate([keys, child_keys[new]])[best]
        return current, scores

    def _edit_structures(self, parents: Population, score: ScoreFunction) -> Population:
        """Genomes of new structures, the best of those tried; none in a space whose structures are fixed."""
        if self.evolving is None:
            return parents[:0]
        typical = float(np.median(self._score_population(parents, score)))
        edited = self._repair(self.evolving.edit_structures(self.random, parents))
        return self.evolving.keep_structures(edited, self._score_population(edited, score), typical)

    def select_parents(self, elites: Population, population: Population) -> Population:
        """Make the parents of the next round: measured elites, mutated copies of them, the best survivors."""
        survivors = population[: int(self.settings.survivor_share * self.population_size)]
        if not len(elites):
            return elites + survivors
        copies = np.resize(np.arange(len(elites)), int(self.settings.neighbour_share * self.population_size))
        neighbours = self._repair(self.space.mutate(self.random, elites[copies]))
        return elites + self._drop_duplicates(neighbours) + survivors

    def _make_children(self, parents: Population, scores: NDArray[np.float64]) -> Population:
        crossed = int(self.population_size * self.settings.crossover_share)
        mutated = int(self.population_size * self.settings.mutation_share)
        order = np.argsort(scores, kind="stable")
        mothers, fathers = self._pick_parents(order, crossed), self._pick_parents(order, crossed)
        mixed = self.space.cross(self.random, parents[mothers], parents[fathers])
        children = self.space.mutate(self.random, mixed)
        changed = self.space.mutate(self.random, parents[self._pick_parents(order, mutated)])
        return children + changed + self.space.sample(self.random, self.population_size - crossed - mutated)

    def _pick_parents(self, order: NDArray[np.intp], count: int) -> NDArray[np.intp]:
        """Pick rows of `order` (best first) by rank selection."""
        ranks = self.random.random(count) ** self.settings.selection_pressure * len(order)
        return order[ranks.astype(np.int64)]

    def _repair(self, population: Population) -> Population:
        legal, dropped = self.space.repair(self.random, population)
        self.refusals.update(dropped)
        self.repaired_count += len(population)
        return legal

    def _drop_duplicates(self, population: Population) -> Population:
        return population[_find_first_occurrences(self.space.compute_keys(population))]

    def _score_population(self, population: Population, score: ScoreFunction) -> NDArray[np.float64]:
        self.scored_count += len(population)
        return score(population)


def _find_first_occurrences(keys: NDArray[np.int64], earlier_count: int = 0) -> NDArray[np.intp]:
    """Find the first occurrence of each key, in order. Keys among the first `earlier_count` count as seen
    before, and the indices begin after them."""
    _, first = np.unique(keys, return_index=True)
    return np.sort(first[first >= earlier_count]) - earlier_count
