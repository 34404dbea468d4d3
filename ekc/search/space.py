"""The design space as arrays: draw, cross, mutate, repair, and read features, a population at a time.

A genome is a structure number and one index per decision name. Decisions of one name have one
table in every structure, so crossover exchanges them by name across structures. Trees and text are
built for none of this; `schedule` builds them for the few that are compiled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ekc.ir.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.refusal import Refusal
from ekc.ir.rules import checks
from ekc.ir.schedule import Schedule
from ekc.search.builder import Structure
from ekc.search.decisions import Decision
from ekc.search.neighbours import Moves
from ekc.search.population import Population
from ekc.search.remedies import Remedy, remedy_for
from ekc.search.structures import structures
from ekc.search.walks import Broken, Sorted, Walks

CHUNK = 8192
"""Rows analysed at once: temporaries stay in cache."""
SAMPLE = 97
"""Random genomes that show the walks which columns hold what."""
REPAIR_ROUNDS = 12
GIVEN_UP = 0.01
"""Share of a population that is not worth another round of repair."""


class Space:
    """All schedules of an operator that its structures (or those `chosen`) can express, on a target with
    these limits."""

    def __init__(self, op: Operator, limits: Limits, chosen: tuple[Structure, ...] = ()) -> None:
        self.op, self.limits = op, limits
        self.structures: tuple[Structure, ...] = chosen or structures(op, limits)
        self.decisions = _by_name(self.structures)
        self.sizes = np.array([d.size for d in self.decisions], dtype=np.int64)
        names = [d.name for d in self.decisions]
        self.uses = np.array([[n in {d.name for d in s.decisions} for n in names] for s in self.structures])
        self._eager = np.flatnonzero([d.eager for d in self.decisions])
        self._last = self.sizes[self._eager] - 1
        self._tiles = np.array([bool(d.kinds) for d in self.decisions])
        self._counts = np.maximum(self.uses.sum(axis=1), 1)
        self._used = np.argsort(~self.uses, axis=1, kind="stable")
        self._moves = Moves([d.table for d in self.decisions])
        self._remedies: dict[str, Remedy] = {}
        # Of sums of products with large odd numbers, all bits differ.
        self._odd = np.random.default_rng(0).integers(0, 2**62, len(names) + 1, dtype=np.int64) * 2 + 1
        self._position = {name: i for i, name in enumerate(names)}
        self._tables = [
            (hole, column, np.ascontiguousarray(d.table[:, i]))
            for column, d in enumerate(self.decisions)
            for i, hole in enumerate(d.holes)
        ]
        drawn = np.random.default_rng(0).integers(0, self.sizes, (SAMPLE, len(self.sizes)))
        self.walks = Walks(op, self.structures, limits, self._columns(drawn))

    def draw(self, random: np.random.Generator, count: int) -> Population:
        """Uniform over structures, then over the table of every decision that is not eager. Not yet legal."""
        structure = random.integers(0, len(self.structures), count)
        return self._canonical(Population(structure, self._fresh(random, count)))

    def _fresh(self, random: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Genes as they are drawn: an eager decision at its last value."""
        genes = random.integers(0, self.sizes, (count, len(self.sizes)))
        genes[:, self._eager] = self._last
        return genes

    def cross(self, random: np.random.Generator, mothers: Population, fathers: Population) -> Population:
        """Structure of the mother; each decision that both have from either, the others from the mother."""
        both = self.uses[mothers.structure] & self.uses[fathers.structure]
        taken = both & (random.random(mothers.genes.shape) < 0.5)
        return self._canonical(Population(mothers.structure, np.where(taken, fathers.genes, mothers.genes)))

    def mutate(self, random: np.random.Generator, parents: Population, structural: float = 0.1) -> Population:
        """Move one or two decisions by one step, or redraw them; sometimes change the structure. With a new
        tile, eager decisions begin at their last value again."""
        count = len(parents)
        genes, structure = parents.genes.copy(), parents.structure
        for rows in (np.arange(count), np.flatnonzero(random.random(count) < 0.4)):
            column = self._picked(random, structure[rows])
            near = self._moves.one(random, column, genes[rows, column])
            far = random.integers(0, self.sizes[column])
            genes[rows, column] = np.where(random.random(len(rows)) < 0.5, near, far)
            # Another tile may let a width be what the last one did not.
            genes[rows[self._tiles[column], None], self._eager] = self._last
        moved = np.flatnonzero(random.random(count) < structural)
        structure = structure.copy()
        structure[moved] = random.integers(0, len(self.structures), len(moved))
        missing = self.uses[structure[moved]] & ~self.uses[parents.structure[moved]]
        genes[moved] = np.where(missing, self._fresh(random, len(moved)), genes[moved])
        return self._canonical(Population(structure, genes))

    def _picked(self, random: np.random.Generator, structure: NDArray[np.int64]) -> NDArray[np.int64]:
        """One decision of each structure, as its column."""
        return np.asarray(self._used[structure, random.integers(0, self._counts[structure])])

    def repair(self, random: np.random.Generator, population: Population) -> tuple[Population, Counter[str]]:
        """Shrink what breaks a rule until it is legal; what stays illegal is dropped and counted by rule.

        The last few that are hard to mend are given up once nearly all are legal.
        """
        genes, left = population.genes.copy(), np.arange(len(population))
        for attempt in range(REPAIR_ROUNDS + 1):
            mended, broken = self._mend(random, Population(population.structure[left], genes[left]))
            illegal = broken >= 0
            left, broken = left[illegal], broken[illegal]
            if attempt == REPAIR_ROUNDS or len(left) <= GIVEN_UP * len(population):
                break
            genes[left] = mended[illegal]
        kept = np.ones(len(population), dtype=bool)
        kept[left] = False
        rules = list(self._remedies)
        return Population(population.structure, genes)[kept], Counter(rules[n] for n in broken.tolist())

    def _mend(
        self, random: np.random.Generator, population: Population
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Genes with every broken rule eased by one remedy, and the first rule that each broke, as its number
        among the rules met so far (-1: none)."""
        genes, broken = population.genes.copy(), np.full(len(population), -1)
        for found in self.broken(population):
            self.remedy(found.rule).ease(random, genes, found.rows, found.excess)
            first = found.rows[broken[found.rows] < 0]
            broken[first] = list(self._remedies).index(found.rule)
        return genes, broken

    def broken(self, population: Population) -> Iterator[Broken]:
        """Every rule that some genomes break, and which."""
        for rows, genomes in self._sorted(population):
            for found in self.walks.broken(genomes):
                yield replace(found, rows=rows[found.rows])

    def remedy(self, rule: str) -> Remedy:
        """What can mend a rule; worked out once."""
        if rule not in self._remedies:
            self._remedies[rule] = remedy_for(rule, self.decisions)
        return self._remedies[rule]

    def figures(self, population: Population) -> dict[str, NDArray[np.float64]]:
        """The analysis of every genome, by quantity."""
        out: dict[str, NDArray[np.float64]] = {}
        for rows, in_order in self.analyses(population):
            for name, column in in_order.items():
                if name not in out:
                    out[name] = np.zeros(len(population))
                out[name][rows] = column
        return out

    def analyses(
        self, population: Population
    ) -> Iterator[tuple[NDArray[np.intp], dict[str, NDArray[np.float64]]]]:
        """The analysis of genomes as it comes: which rows, in no order, and every quantity of these."""
        for rows, genomes in self._sorted(population):
            in_order: dict[str, NDArray[np.float64]] = {}
            for name, part, values in self.walks.figures(genomes):
                if name not in in_order:
                    in_order[name] = np.zeros(len(rows))
                in_order[name][part] = values
            yield rows, in_order

    def _sorted(self, population: Population) -> Iterator[tuple[NDArray[np.intp], Sorted]]:
        """Chunks of genomes sorted by structure, and which rows of the population they are."""
        for start in range(0, len(population), CHUNK):
            # Numbers of 16 bits are sorted by counting.
            structure = population.structure[start : start + CHUNK].astype(np.int16)
            rows = start + np.argsort(structure, kind="stable")
            counts = np.bincount(structure, minlength=len(self.structures))
            yield rows, Sorted([0, *np.cumsum(counts).tolist()], self._columns(population.genes[rows]))

    def _columns(self, genes: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """What genes put into the holes."""
        by_column = np.ascontiguousarray(genes.T)
        return {hole: table.take(by_column[column]) for hole, column, table in self._tables}

    def values(self, population: Population, row: int) -> dict[str, int]:
        """The decisions of one genome as plain numbers, by hole name."""
        values: dict[str, int] = {}
        for d in self.structures[population.structure[row]].decisions:
            numbers = d.value(int(population.genes[row, self._position[d.name]]))
            values |= dict(zip(d.holes, numbers, strict=True))
        return values

    def schedule(self, population: Population, row: int) -> Schedule:
        """One genome as a Schedule, every step checked."""
        values = self.values(population, row)
        return Schedule(self.op).do(
            *(s.filled(values) for s in self.structures[population.structure[row]].steps)
        )

    def structure_name(self, population: Population, row: int) -> str:
        """Which structure a genome has, in words."""
        return self.structures[int(population.structure[row])].name

    def refusals(self, population: Population, row: int) -> Iterator[Refusal]:
        """Why one genome is not legal."""
        program = self.walks.program(int(population.structure[row]), self.values(population, row))
        for check in checks(program, self.limits):
            refusal = check.refusal()
            if refusal is not None:
                yield refusal

    def keys(self, population: Population) -> NDArray[np.int64]:
        """A number per genome, equal for equal ones and not 0: for throwing duplicates out."""
        key: NDArray[np.int64] = population.genes @ self._odd[1:] + population.structure * self._odd[0]
        return key + 1

    def _canonical(self, population: Population) -> Population:
        """Genes that a structure does not use are 0, so that they make no false variety."""
        return Population(
            population.structure, np.where(self.uses[population.structure], population.genes, 0)
        )


def _by_name(all_structures: tuple[Structure, ...]) -> tuple[Decision, ...]:
    """Every decision once, in order of first appearance; one name has one table."""
    found: dict[str, Decision] = {}
    for s in all_structures:
        for d in s.decisions:
            known = found.setdefault(d.name, d)
            if not np.array_equal(known.table, d.table):
                raise ValueError(f"decision {d.name} has two tables")
    return tuple(found.values())
