"""The design space as arrays: draw, cross, mutate, repair, and read features, a population at a time.

A genome is a structure number and one index per decision name. Decisions of one name have one
table in every structure, so crossover exchanges them by name across structures. Trees and text are
built for none of this; `schedule` builds them for the few that are compiled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ekc.devices.base import Peaks
from ekc.devices.cuda.remote import Remote
from ekc.ir.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.refusal import Refusal
from ekc.ir.rules.launch import checks
from ekc.ir.schedule import Schedule
from ekc.search.models.analysed import Analysed, room
from ekc.search.population import Population
from ekc.search.space.aside import Aside
from ekc.search.space.builder import Structure
from ekc.search.space.decisions import Decision
from ekc.search.space.neighbours import Moves
from ekc.search.space.part import Part
from ekc.search.space.structures import structures

PARTS = 2
"""As many as there are processes to work on them: this one, and one aside."""
T = TypeVar("T")


class Space:
    """All schedules of an operator that its structures (or those `chosen`) can express, on a target with
    these limits."""

    def __init__(
        self,
        op: Operator,
        limits: Limits,
        chosen: tuple[Structure, ...] = (),
        worker: Remote | None = None,
    ) -> None:
        """`worker`: a process, no other space's, that takes its part of the work, which makes no difference
        to what is found; it knows none but the structures of the operator."""
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
        # Of sums of products with large odd numbers, all bits differ.
        self._odd = np.random.default_rng(0).integers(0, 2**62, len(names) + 1, dtype=np.int64) * 2 + 1
        self._position = {name: i for i, name in enumerate(names)}
        parts = min(PARTS, len(self.structures))
        self.parts = tuple(
            Part(op, limits, self.structures, self.decisions, number, parts) for number in range(parts)
        )
        self._aside: Aside | None = None
        if worker is not None and not chosen and parts == PARTS:
            self._aside = Aside(worker, op, limits, PARTS - 1)

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
        """Shrink what breaks a rule until it is legal; what stays illegal is dropped and counted by rule."""
        seeds = random.integers(0, 2**63, len(self.parts)).tolist()
        genes, legal = population.genes.copy(), np.zeros(len(population), dtype=bool)
        dropped: Counter[str] = Counter()
        for rows, mended in self._by_part(Part.repair, population, seeds):
            genes[rows], legal[rows] = mended.genomes.genes, mended.legal
            dropped += mended.dropped
        return Population(population.structure, genes)[legal], dropped

    def seen(self, population: Population, peaks: Peaks) -> Analysed:
        """What the models see of every genome, for a device with these peaks."""
        found = room(len(population))
        for rows, own in self._by_part(Part.seen, population, [peaks] * len(self.parts)):
            found.put(rows, own)
        return found

    def _by_part(
        self, what: Callable[[Part, Population, Any], T], population: Population, given: Sequence[Any]
    ) -> Iterator[tuple[NDArray[np.intp], T]]:
        """What a method of the parts says of the genomes of each, and which rows these are."""
        shares = list(self._shares(population))
        asked = [(own, more) for (_, own), more in zip(shares, given, strict=True)]
        if self._aside is None:
            found = [what(part, *own) for part, own in zip(self.parts, asked, strict=True)]
        else:
            found = self._aside.each(self.parts, what, asked)
        yield from zip((rows for rows, _ in shares), found, strict=True)

    def _shares(self, population: Population) -> Iterator[tuple[NDArray[np.intp], Population]]:
        """The genomes of each part, and which rows they are."""
        number = population.structure % len(self.parts)
        for i in range(len(self.parts)):
            rows = np.flatnonzero(number == i)
            yield rows, population[rows]

    def figures(self, population: Population) -> dict[str, NDArray[np.float64]]:
        """The analysis of every genome, by quantity."""
        out: dict[str, NDArray[np.float64]] = {}
        for part, (rows, own) in zip(self.parts, self._shares(population), strict=True):
            for some, in_order in part.analyses(own):
                for name, column in in_order.items():
                    if name not in out:
                        out[name] = np.zeros(len(population))
                    out[name][rows[some]] = column
        return out

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
        structure = int(population.structure[row])
        part = self.parts[structure % len(self.parts)]
        program = part.walks.program(structure // len(self.parts), self.values(population, row))
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
