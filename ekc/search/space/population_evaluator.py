"""Rules, repair and analysis of the genomes of a space, in chunks sorted by structure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import PriorFunction
from ekc.ir.hardware.target import Limits
from ekc.ir.operator import Operator
from ekc.search.cost_model.features import ModelInputs, allocate_inputs, make_model_inputs
from ekc.search.data.defaults import SPACE
from ekc.search.data.population import Population
from ekc.search.sketches.builder import Structure
from ekc.search.sketches.decisions import Decision
from ekc.search.space.constraints import RuleViolation, SortedGenomes, StructureEvaluator
from ekc.search.space.repair import RepairOperator, make_repair_operator

Quantities = dict[str, NDArray[np.float64]]


class PopulationEvaluator:
    """Applies the rules and the analysis of the structures to whole populations."""

    def __init__(
        self, op: Operator, limits: Limits, structures: Sequence[Structure], decisions: Sequence[Decision]
    ) -> None:
        """`decisions`: those of all structures, in the order of the genes."""
        self._decisions, self._structure_count = decisions, len(structures)
        self._repair_operators: dict[str, RepairOperator] = {}
        self._hole_tables = [
            (hole, column, np.ascontiguousarray(d.table[:, i]))
            for column, d in enumerate(decisions)
            for i, hole in enumerate(d.holes)
        ]
        sizes = [d.size for d in decisions]
        sample = np.random.default_rng(0).integers(0, sizes, (SPACE.trace_sample_rows, len(sizes)))
        self.structures = StructureEvaluator(op, structures, limits, self._get_hole_values(sample))

    def record_traces(self) -> None:
        """Record rules and analysis now; otherwise the first population waits for it."""
        self.structures.record_traces()

    def repair(self, random: np.random.Generator, population: Population) -> tuple[Population, Counter[str]]:
        """Lower decisions of the genomes that break a rule, until they are legal. The last few are dropped
        once nearly all others are legal. Returns (legal genomes, number of dropped genomes by the rule that
        each breaks first)."""
        genes, left = population.genes.copy(), np.arange(len(population))
        for attempt in range(SPACE.repair_rounds + 1):
            repaired, broken = self._repair_once(random, Population(population.structure[left], genes[left]))
            illegal = broken >= 0
            left, broken = left[illegal], broken[illegal]
            if attempt == SPACE.repair_rounds or len(left) <= SPACE.unrepaired_share * len(population):
                break
            genes[left] = repaired[illegal]
        legal = np.ones(len(population), dtype=bool)
        legal[left] = False
        rules = list(self._repair_operators)
        dropped = Counter(rules[n] for n in broken.tolist())
        return Population(population.structure, genes)[legal], dropped

    def _repair_once(
        self, random: np.random.Generator, population: Population
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(genes after one repair for every broken rule, first rule that each genome broke). A rule is its
        index in `_repair_operators`; -1: none."""
        genes, broken = population.genes.copy(), np.full(len(population), -1)
        for found in self.find_violations(population):
            self._get_repair_operator(found.rule).apply(random, genes, found.rows, found.violation)
            first = found.rows[broken[found.rows] < 0]
            broken[first] = list(self._repair_operators).index(found.rule)
        return genes, broken

    def _get_repair_operator(self, rule: str) -> RepairOperator:
        """The repair operator of a rule, made once."""
        if rule not in self._repair_operators:
            self._repair_operators[rule] = make_repair_operator(rule, self._decisions)
        return self._repair_operators[rule]

    def find_violations(self, population: Population) -> Iterator[RuleViolation]:
        """The rules that some genomes break, with the rows of the population."""
        for rows, genomes in self._sort_by_structure(population):
            for found in self.structures.find_violations(genomes):
                yield replace(found, rows=rows[found.rows])

    def extract_inputs(self, population: Population, predict_prior: PriorFunction) -> ModelInputs:
        """The inputs of the cost model for every genome, on a device with this prior."""
        found = allocate_inputs(len(population))
        for rows, figures in self.iterate_quantities(population):
            found.set_rows(rows, make_model_inputs(figures, predict_prior))
        return found

    def iterate_quantities(self, population: Population) -> Iterator[tuple[NDArray[np.intp], Quantities]]:
        """(rows of the population, quantities of these rows) of each chunk of genomes."""
        for rows, genomes in self._sort_by_structure(population):
            columns: Quantities = {}
            for name, part, values in self.structures.compute_quantities(genomes):
                if name not in columns:
                    columns[name] = np.zeros(len(rows))
                columns[name][part] = values
            yield rows, columns

    def _sort_by_structure(self, population: Population) -> Iterator[tuple[NDArray[np.intp], SortedGenomes]]:
        """(rows of the population, their genomes sorted by structure) of each chunk."""
        for start in range(0, len(population), SPACE.chunk_rows):
            # NumPy sorts integers of 16 bits by counting.
            structure = population.structure[start : start + SPACE.chunk_rows].astype(np.int16)
            rows = start + np.argsort(structure, kind="stable")
            bounds = [0, *np.cumsum(np.bincount(structure, minlength=self._structure_count)).tolist()]
            yield rows, SortedGenomes(bounds, self._get_hole_values(population.genes[rows]))

    def _get_hole_values(self, genes: NDArray[np.int64]) -> Mapping[str, NDArray[np.int64]]:
        """Hole -> its value in each genome."""
        by_column = np.ascontiguousarray(genes.T)
        return {hole: table.take(by_column[column]) for hole, column, table in self._hole_tables}


def merge_decisions(structures: Sequence[Structure]) -> tuple[Decision, ...]:
    """Decisions of all structures, each name once, in order of first use; a name must have one table."""
    merged: dict[str, Decision] = {}
    for structure in structures:
        for decision in structure.decisions:
            first = merged.setdefault(decision.name, decision)
            if not np.array_equal(first.table, decision.table):
                raise ValueError(f"decision {decision.name} has two tables")
    return tuple(merged.values())
