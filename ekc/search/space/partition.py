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

from ekc.devices.device import Peaks
from ekc.ir.hardware.limits import Limits
from ekc.ir.operator import Operator
from ekc.search.cost_model.features import ModelInputs, allocate_inputs, make_model_inputs
from ekc.search.data.population import Population
from ekc.search.sketches.builder import Structure
from ekc.search.sketches.decisions import Decision
from ekc.search.sketches.multi_level_tiling import derive_structures
from ekc.search.space.constraints import RuleViolation, SortedGenomes, StructureEvaluator
from ekc.search.space.repair import RepairOperator, make_repair_operator

PARTITION_COUNT = 2
"""Partitions of a space: one for this process and one for the background worker."""
CHUNK_ROWS = 8192
"""Rows analysed at once: temporaries stay in cache."""
TRACE_SAMPLE_ROWS = 97
"""Random genomes that show the walks which columns hold what."""
REPAIR_ROUNDS = 12
UNREPAIRED_SHARE = 0.01
"""Share of a population that is not worth another round of repair."""

Quantities = dict[str, NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class RepairResult:
    """What became of some genomes."""

    genomes: Population
    is_legal: NDArray[np.bool_]
    dropped_by_rule: Counter[str]
    """Why the others are not legal: the first rule that each breaks."""


class SpacePartition:
    """One of `parts` parts of a space with these decisions: its structures `number`, `number + parts` and so
    on, since neighbours are alike, and what is best is rarely alone."""

    def __init__(
        self,
        op: Operator,
        limits: Limits,
        structures: Sequence[Structure],
        decisions: Sequence[Decision],
        index: int,
        partition_count: int,
    ) -> None:
        """`structures`: all of the space."""
        structures = structures[index::partition_count]
        self.structures, self.index, self._partition_count, self._decisions = (
            structures,
            index,
            partition_count,
            decisions,
        )
        self._repair_operators: dict[str, RepairOperator] = {}
        own = {d.name for s in structures for d in s.decisions}
        self._hole_tables = [
            (hole, column, np.ascontiguousarray(d.table[:, i]))
            for column, d in enumerate(decisions)
            if d.name in own
            for i, hole in enumerate(d.holes)
        ]
        sizes = [d.size for d in decisions]
        sample = np.random.default_rng(0).integers(0, sizes, (TRACE_SAMPLE_ROWS, len(sizes)))
        self.evaluator = StructureEvaluator(op, structures, limits, self._get_hole_values(sample))

    def record_traces(self) -> None:
        """Record the walks, for which the first population would wait."""
        self.evaluator.record_traces()

    def repair(self, population: Population, seed: int) -> RepairResult:
        """Shrink what breaks a rule until it is legal. The last few that are hard to mend are given up once
        nearly all are legal."""
        random = np.random.default_rng(seed)
        genes, left = population.genes.copy(), np.arange(len(population))
        for attempt in range(REPAIR_ROUNDS + 1):
            mended, broken = self._repair_once(random, Population(population.structure[left], genes[left]))
            illegal = broken >= 0
            left, broken = left[illegal], broken[illegal]
            if attempt == REPAIR_ROUNDS or len(left) <= UNREPAIRED_SHARE * len(population):
                break
            genes[left] = mended[illegal]
        legal = np.ones(len(population), dtype=bool)
        legal[left] = False
        rules = list(self._repair_operators)
        return RepairResult(
            Population(population.structure, genes), legal, Counter(rules[n] for n in broken.tolist())
        )

    def _repair_once(
        self, random: np.random.Generator, population: Population
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Genes with every broken rule eased by one remedy, and the first rule that each broke, as its number
        among the rules met so far (-1: none)."""
        genes, broken = population.genes.copy(), np.full(len(population), -1)
        for found in self.find_violations(population):
            self._get_repair_operator(found.rule).apply(random, genes, found.rows, found.violation)
            first = found.rows[broken[found.rows] < 0]
            broken[first] = list(self._repair_operators).index(found.rule)
        return genes, broken

    def _get_repair_operator(self, rule: str) -> RepairOperator:
        """What can mend a rule; worked out once."""
        if rule not in self._repair_operators:
            self._repair_operators[rule] = make_repair_operator(rule, self._decisions)
        return self._repair_operators[rule]

    def find_violations(self, population: Population) -> Iterator[RuleViolation]:
        """Every rule that some genomes break, and which."""
        for rows, genomes in self._sort_by_structure(population):
            for found in self.evaluator.find_violations(genomes):
                yield replace(found, rows=rows[found.rows])

    def extract_inputs(self, population: Population, peaks: Peaks) -> ModelInputs:
        """What the models see of every genome."""
        found = allocate_inputs(len(population))
        for rows, figures in self.iterate_quantities(population):
            found.set_rows(rows, make_model_inputs(figures, peaks))
        return found

    def iterate_quantities(self, population: Population) -> Iterator[tuple[NDArray[np.intp], Quantities]]:
        """The analysis of genomes as it comes: which rows, in no order, and every quantity of these."""
        for rows, genomes in self._sort_by_structure(population):
            in_order: Quantities = {}
            for name, part, values in self.evaluator.compute_quantities(genomes):
                if name not in in_order:
                    in_order[name] = np.zeros(len(rows))
                in_order[name][part] = values
            yield rows, in_order

    def _sort_by_structure(self, population: Population) -> Iterator[tuple[NDArray[np.intp], SortedGenomes]]:
        """Chunks of genomes sorted by structure, and which rows of the population they are."""
        for start in range(0, len(population), CHUNK_ROWS):
            # Numbers of 16 bits are sorted by counting.
            structure = (population.structure[start : start + CHUNK_ROWS] // self._partition_count).astype(
                np.int16
            )
            rows = start + np.argsort(structure, kind="stable")
            counts = np.bincount(structure, minlength=len(self.structures))
            yield (
                rows,
                SortedGenomes(
                    [0, *np.cumsum(counts).tolist()], self._get_hole_values(population.genes[rows])
                ),
            )

    def _get_hole_values(self, genes: NDArray[np.int64]) -> Mapping[str, NDArray[np.int64]]:
        """What genes put into the holes."""
        by_column = np.ascontiguousarray(genes.T)
        return {hole: table.take(by_column[column]) for hole, column, table in self._hole_tables}


def make_partitions(
    op: Operator, limits: Limits, structures: Sequence[Structure], decisions: Sequence[Decision]
) -> tuple[SpacePartition, ...]:
    """All partitions of a space; one alone where it has a single structure."""
    count = min(PARTITION_COUNT, len(structures))
    return tuple(SpacePartition(op, limits, structures, decisions, i, count) for i in range(count))


def make_partition(op: Operator, limits: Limits, index: int) -> SpacePartition:
    """One partition of the space of all structures of an operator."""
    structures = derive_structures(op, limits)
    return make_partitions(op, limits, structures, merge_decisions(structures))[index]


def merge_decisions(structures: Sequence[Structure]) -> tuple[Decision, ...]:
    """The decisions of all structures, each name once, in order of first appearance. Decisions of one name
    must have one table."""
    merged: dict[str, Decision] = {}
    for structure in structures:
        for decision in structure.decisions:
            first = merged.setdefault(decision.name, decision)
            if not np.array_equal(first.table, decision.table):
                raise ValueError(f"decision {decision.name} has two tables")
    return tuple(merged.values())
