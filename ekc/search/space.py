"""The design space as arrays: draw, cross, mutate, repair, and read features, a population at a time.

A genome is a structure number and one index per decision name. Decisions of one name have one
table in every structure, so crossover exchanges them by name across structures. Trees and text are
built for none of this; `schedule` builds them for the few that are compiled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.analysis import analyse
from ekc.ir.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.program import Program, initial
from ekc.ir.refusal import Check, Refusal
from ekc.ir.rules import checks
from ekc.ir.schedule import Schedule
from ekc.search.decisions import Decision
from ekc.search.remedies import Remedy, remedy_for
from ekc.search.structures import Structure, structures

CHUNK = 4096
"""Rows analysed at once: temporaries stay in cache."""
REPAIR_ROUNDS = 12


@dataclass(frozen=True, eq=False)
class Population:
    """Genomes: `structure[n]`, and `genes[n, d]` an index into the table of decision d (0 if unused)."""

    structure: NDArray[np.int64]
    genes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.structure)

    def __getitem__(self, rows: Any) -> Population:
        return Population(self.structure[rows], self.genes[rows])

    def __add__(self, other: Population) -> Population:
        return Population(
            np.concatenate([self.structure, other.structure]), np.concatenate([self.genes, other.genes])
        )


class Space:
    """All schedules of an operator that its structures can express, on a target with these limits."""

    def __init__(self, op: Operator, limits: Limits) -> None:
        self.op, self.limits = op, limits
        self.structures: tuple[Structure, ...] = structures(op)
        self.decisions = _by_name(self.structures)
        self.sizes = np.array([d.size for d in self.decisions], dtype=np.int64)
        names = [d.name for d in self.decisions]
        self.uses = np.array([[n in {d.name for d in s.decisions} for n in names] for s in self.structures])
        self._remedies: dict[tuple[int, str], Remedy] = {}
        self._position = {name: i for i, name in enumerate(names)}

    def draw(self, random: np.random.Generator, count: int) -> Population:
        """Uniform over structures, then over the table of every decision. Not yet legal."""
        structure = random.integers(0, len(self.structures), count)
        genes = random.integers(0, self.sizes, (count, len(self.sizes)))
        return self._canonical(Population(structure, genes))

    def cross(self, random: np.random.Generator, mothers: Population, fathers: Population) -> Population:
        """Structure of the mother; each decision that both have from either, the others from the mother."""
        both = self.uses[mothers.structure] & self.uses[fathers.structure]
        taken = both & (random.random(mothers.genes.shape) < 0.5)
        return self._canonical(Population(mothers.structure, np.where(taken, fathers.genes, mothers.genes)))

    def mutate(self, random: np.random.Generator, parents: Population, structural: float = 0.1) -> Population:
        """Redraw one or two decisions, half the time nearby; sometimes change the structure."""
        count, width = parents.genes.shape
        uses = self.uses[parents.structure]
        weight = np.where(uses, random.random((count, width)), -1.0)
        first = weight >= np.sort(weight, axis=1)[:, -1:]
        second = (weight >= np.sort(weight, axis=1)[:, -2:-1]) & (random.random((count, 1)) < 0.4)
        chosen = (first | second) & uses
        step = random.integers(1, 4, (count, width)) * random.choice([-1, 1], (count, width))
        near = np.clip(parents.genes + step, 0, self.sizes - 1)
        far = random.integers(0, self.sizes, (count, width))
        genes = np.where(chosen, np.where(random.random((count, width)) < 0.5, near, far), parents.genes)
        moved = random.random(count) < structural
        structure = np.where(moved, random.integers(0, len(self.structures), count), parents.structure)
        missing = self.uses[structure] & ~uses
        return self._canonical(Population(structure, np.where(missing, far, genes)))

    def repair(self, random: np.random.Generator, population: Population) -> tuple[Population, Counter[str]]:
        """Shrink what breaks a rule until it is legal; what stays illegal is dropped and counted by rule."""
        genes, legal = population.genes.copy(), np.zeros(len(population), dtype=bool)
        for attempt in range(REPAIR_ROUNDS + 1):
            rows = np.flatnonzero(~legal)
            if not rows.size:
                break
            mended, legal[rows] = self._mend(random, Population(population.structure[rows], genes[rows]))
            if attempt < REPAIR_ROUNDS:
                genes[rows] = mended
        current, reasons = Population(population.structure, genes), Counter[str]()
        for row in np.flatnonzero(~legal):
            refusal = next(iter(self.refusals(current, int(row))), None)
            reasons[refusal.rule if refusal else "unknown"] += 1
        return current[legal], reasons

    def _mend(
        self, random: np.random.Generator, population: Population
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Genes with every broken rule eased by one remedy, and which rows were legal before."""
        genes, legal = population.genes.copy(), np.ones(len(population), dtype=bool)
        for rows, structure, program in self._programs(population):
            for check in checks(program, self.limits):
                failed = np.flatnonzero(~check.mask(len(rows)))
                if failed.size:
                    legal[rows[failed]] = False
                    remedy = self.remedies(structure, check.rule)
                    genes[rows[failed]] = remedy.ease(random, genes[rows[failed]], _excess(check, failed))
        return genes, legal

    def remedies(self, structure: int, rule: str) -> Remedy:
        """What can mend a rule in a structure; worked out once."""
        if (structure, rule) not in self._remedies:
            own = {i: d for i, d in enumerate(self.decisions) if self.uses[structure, i]}
            self._remedies[structure, rule] = remedy_for(rule, own)
        return self._remedies[structure, rule]

    def figures(self, population: Population) -> dict[str, NDArray[np.float64]]:
        """The analysis of every genome, by quantity."""
        out: dict[str, NDArray[np.float64]] = {}
        for rows, _, program in self._programs(population):
            for name, values in analyse(program, self.limits, len(rows)).items():
                out.setdefault(name, np.zeros(len(population)))[rows] = values
        return out

    def _programs(self, population: Population) -> Iterator[tuple[NDArray[np.int64], int, Program]]:
        """Chunks of one structure each, as one Program with vector extents."""
        for structure in np.unique(population.structure).tolist():
            rows = np.flatnonzero(population.structure == structure)
            for start in range(0, len(rows), CHUNK):
                chunk = rows[start : start + CHUNK]
                yield chunk, structure, self.program(structure, population.genes[chunk])

    def program(self, structure: int, genes: NDArray[np.int64]) -> Program:
        """The Program of one structure for many genomes at once: extents are vectors."""
        values: dict[str, Any] = {}
        for d in self.structures[structure].decisions:
            picked = d.table[genes[:, self._position[d.name]]]
            values |= {hole: picked[:, i] for i, hole in enumerate(d.holes)}
        return self._apply(structure, values)

    def _apply(self, structure: int, values: dict[str, Any]) -> Program:
        program = initial(self.op)
        for step in self.structures[structure].steps:
            program = step.filled(values).apply(program)
        return program

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

    def refusals(self, population: Population, row: int) -> Iterator[Refusal]:
        """Why one genome is not legal."""
        program = self._apply(int(population.structure[row]), self.values(population, row))
        for check in checks(program, self.limits):
            refusal = check.refusal()
            if refusal is not None:
                yield refusal

    def keys(self, population: Population) -> NDArray[np.int64]:
        """A number per genome, equal for equal ones: for throwing duplicates out."""
        key: NDArray[np.int64] = population.structure.astype(np.int64)
        with np.errstate(over="ignore"):
            for column in range(population.genes.shape[1]):
                key = key * np.int64(1_000_003) + population.genes[:, column] * np.int64(2_654_435_761)
                key ^= key >> 31
        return key

    def _canonical(self, population: Population) -> Population:
        """Genes that a structure does not use are 0, so that they make no false variety."""
        return Population(
            population.structure, np.where(self.uses[population.structure], population.genes, 0)
        )


def _excess(check: Check, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """By how much a need exceeds its limit, as a ratio of at least 1; 1 where a rule has no numbers."""
    if check.limit_text != "{}" or isinstance(check.need, str) or isinstance(check.limit, str):
        return np.ones(len(rows))
    ratio = np.atleast_1d(np.asarray(check.need, dtype=np.float64) / np.maximum(check.limit, 1))
    return np.asarray(np.maximum(ratio[rows] if len(ratio) > 1 else ratio.repeat(len(rows)), 1.0))


def _by_name(all_structures: tuple[Structure, ...]) -> tuple[Decision, ...]:
    """Every decision once, in order of first appearance; one name has one table."""
    found: dict[str, Decision] = {}
    for s in all_structures:
        for d in s.decisions:
            known = found.setdefault(d.name, d)
            if not np.array_equal(known.table, d.table):
                raise ValueError(f"decision {d.name} has two tables")
    return tuple(found.values())
