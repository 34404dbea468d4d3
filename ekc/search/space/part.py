"""Some structures of a space: which of their genomes break a rule, how these are mended, and what the
analysis says of them.

A part needs nothing of the others, so that two processes may have one each (`aside.py`). What becomes of a
genome depends on its own part alone, so it is the same wherever that is worked on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ekc.devices.base import Peaks
from ekc.ir.limits import Limits
from ekc.ir.operator import Operator
from ekc.search.models.analysed import Analysed, analysed, room
from ekc.search.population import Population
from ekc.search.space.builder import Structure
from ekc.search.space.decisions import Decision
from ekc.search.space.remedies import Remedy, remedy_for
from ekc.search.space.walks import Broken, Sorted, Walks

CHUNK = 8192
"""Rows analysed at once: temporaries stay in cache."""
SAMPLE = 97
"""Random genomes that show the walks which columns hold what."""
REPAIR_ROUNDS = 12
GIVEN_UP = 0.01
"""Share of a population that is not worth another round of repair."""

Figures = dict[str, NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Mended:
    """What became of some genomes."""

    genomes: Population
    legal: NDArray[np.bool_]
    dropped: Counter[str]
    """Why the others are not legal: the first rule that each breaks."""


class Part:
    """One of `parts` parts of a space with these decisions: its structures `number`, `number + parts` and so
    on, since neighbours are alike, and what is best is rarely alone."""

    def __init__(
        self,
        op: Operator,
        limits: Limits,
        structures: Sequence[Structure],
        decisions: Sequence[Decision],
        number: int,
        parts: int,
    ) -> None:
        """`structures`: all of the space."""
        structures = structures[number::parts]
        self.structures, self.number, self._parts, self._decisions = structures, number, parts, decisions
        self._remedies: dict[str, Remedy] = {}
        own = {d.name for s in structures for d in s.decisions}
        self._tables = [
            (hole, column, np.ascontiguousarray(d.table[:, i]))
            for column, d in enumerate(decisions)
            if d.name in own
            for i, hole in enumerate(d.holes)
        ]
        sizes = [d.size for d in decisions]
        sample = np.random.default_rng(0).integers(0, sizes, (SAMPLE, len(sizes)))
        self.walks = Walks(op, structures, limits, self._columns(sample))

    def prepare(self) -> None:
        """Record the walks, for which the first population would wait."""
        self.walks.prepare()

    def repair(self, population: Population, seed: int) -> Mended:
        """Shrink what breaks a rule until it is legal. The last few that are hard to mend are given up once
        nearly all are legal."""
        random = np.random.default_rng(seed)
        genes, left = population.genes.copy(), np.arange(len(population))
        for attempt in range(REPAIR_ROUNDS + 1):
            mended, broken = self._mend(random, Population(population.structure[left], genes[left]))
            illegal = broken >= 0
            left, broken = left[illegal], broken[illegal]
            if attempt == REPAIR_ROUNDS or len(left) <= GIVEN_UP * len(population):
                break
            genes[left] = mended[illegal]
        legal = np.ones(len(population), dtype=bool)
        legal[left] = False
        rules = list(self._remedies)
        return Mended(
            Population(population.structure, genes), legal, Counter(rules[n] for n in broken.tolist())
        )

    def _mend(
        self, random: np.random.Generator, population: Population
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Genes with every broken rule eased by one remedy, and the first rule that each broke, as its number
        among the rules met so far (-1: none)."""
        genes, broken = population.genes.copy(), np.full(len(population), -1)
        for found in self.broken(population):
            self._remedy(found.rule).ease(random, genes, found.rows, found.excess)
            first = found.rows[broken[found.rows] < 0]
            broken[first] = list(self._remedies).index(found.rule)
        return genes, broken

    def _remedy(self, rule: str) -> Remedy:
        """What can mend a rule; worked out once."""
        if rule not in self._remedies:
            self._remedies[rule] = remedy_for(rule, self._decisions)
        return self._remedies[rule]

    def broken(self, population: Population) -> Iterator[Broken]:
        """Every rule that some genomes break, and which."""
        for rows, genomes in self._sorted(population):
            for found in self.walks.broken(genomes):
                yield replace(found, rows=rows[found.rows])

    def seen(self, population: Population, peaks: Peaks) -> Analysed:
        """What the models see of every genome."""
        found = room(len(population))
        for rows, figures in self.analyses(population):
            found.put(rows, analysed(figures, peaks))
        return found

    def analyses(self, population: Population) -> Iterator[tuple[NDArray[np.intp], Figures]]:
        """The analysis of genomes as it comes: which rows, in no order, and every quantity of these."""
        for rows, genomes in self._sorted(population):
            in_order: Figures = {}
            for name, part, values in self.walks.figures(genomes):
                if name not in in_order:
                    in_order[name] = np.zeros(len(rows))
                in_order[name][part] = values
            yield rows, in_order

    def _sorted(self, population: Population) -> Iterator[tuple[NDArray[np.intp], Sorted]]:
        """Chunks of genomes sorted by structure, and which rows of the population they are."""
        for start in range(0, len(population), CHUNK):
            # Numbers of 16 bits are sorted by counting.
            structure = (population.structure[start : start + CHUNK] // self._parts).astype(np.int16)
            rows = start + np.argsort(structure, kind="stable")
            counts = np.bincount(structure, minlength=len(self.structures))
            yield rows, Sorted([0, *np.cumsum(counts).tolist()], self._columns(population.genes[rows]))

    def _columns(self, genes: NDArray[np.int64]) -> Mapping[str, NDArray[np.int64]]:
        """What genes put into the holes."""
        by_column = np.ascontiguousarray(genes.T)
        return {hole: table.take(by_column[column]) for hole, column, table in self._tables}
