"""The design space as arrays: sample, cross, mutate, repair and analyse whole populations.

A genome is the index of a structure and one index per decision name. Decisions of one name have the same
table in every structure, so crossover exchanges them by name across structures. No schedule tree and no CUDA
text is built for a population; `build_schedule` builds the schedule of one genome.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.schedule import Step
from ekc.ir.schedule.schedule import Schedule
from ekc.search.cost_model.features import InputFunction, ModelInputs, allocate_inputs
from ekc.search.data.defaults import SPACE
from ekc.search.data.population import Population
from ekc.search.sketches.builder import Structure
from ekc.search.sketches.decisions import Decision, NeighbourTable
from ekc.search.sketches.multi_level_tiling import derive_structures
from ekc.search.space.constraints import (
    RepairOperator,
    RuleViolation,
    SortedGenomes,
    StructureEvaluator,
    make_repair_operator,
)

Quantities = dict[str, NDArray[np.float64]]


class Space:
    """All schedules that the structures of an operator, or `chosen_structures`, express on a target."""

    origin = ""
    """See `ScheduleSpace`."""

    def __init__(
        self,
        op: Operator,
        limits: LaunchLimits,
        chosen_structures: tuple[Structure, ...] = (),
    ) -> None:
        self.op, self.limits = op, limits
        structures = chosen_structures or derive_structures(op, limits)
        self._set_structures(structures, merge_decisions(structures))

    def _set_structures(self, structures: tuple[Structure, ...], decisions: tuple[Decision, ...]) -> None:
        """Make the arrays of these structures, with the decisions in the order of genome columns."""
        self.structures, self.decisions = structures, decisions
        self.structure_ids = np.arange(len(structures))
        """Number of each structure; genomes of equal numbers are equal."""
        self.decision_sizes = np.array([d.size for d in self.decisions], dtype=np.int64)
        names = [d.name for d in self.decisions]
        self.uses_decision = np.array(
            [[n in {d.name for d in s.decisions} for n in names] for s in self.structures]
        )
        self._start_at_max_columns = np.flatnonzero([d.starts_at_max for d in self.decisions])
        self._max_values = self.decision_sizes[self._start_at_max_columns] - 1
        self._is_tiling = np.array([bool(d.kinds) for d in self.decisions])
        self._decision_counts = np.maximum(self.uses_decision.sum(axis=1), 1)
        self._decision_order = np.argsort(~self.uses_decision, axis=1, kind="stable")
        self._neighbours = NeighbourTable(self.decisions)
        # Sums of products with large odd numbers differ in all bits.
        self._hash_multipliers = (
            np.random.default_rng(0).integers(0, 2**62, len(names) + 1, dtype=np.int64) * 2 + 1
        )
        self._column_by_name = {name: i for i, name in enumerate(names)}
        self._repair_operators: dict[str, RepairOperator] = {}
        self._hole_tables = [
            (hole, column, np.ascontiguousarray(d.table[:, i]))
            for column, d in enumerate(self.decisions)
            for i, hole in enumerate(d.holes)
        ]

    def _iterate_evaluators(
        self, genomes: SortedGenomes
    ) -> Iterator[tuple[StructureEvaluator, int, SortedGenomes]]:
        """(evaluator, first row, genomes of its structures) for each evaluator of the space."""
        yield self.evaluator, 0, genomes

    @cached_property
    def evaluator(self) -> StructureEvaluator:
        """Rules and analysis of the structures. It has some 40 MB of recorded array operations."""
        return self._make_evaluator(self.structures)

    def _make_evaluator(self, structures: tuple[Structure, ...]) -> StructureEvaluator:
        """An evaluator that records its array operations."""
        shape = SPACE.trace_sample_rows, len(self.decisions)
        sample = np.random.default_rng(0).integers(0, self.decision_sizes, shape)
        holes = {hole for s in structures for d in s.decisions for hole in d.holes}
        values = {h: column for h, column in self._get_hole_values(sample).items() if h in holes}
        return StructureEvaluator(self.op, structures, self.limits, values)

    def forget_evaluator(self) -> None:
        """Free the memory of the evaluator. The next use makes an equal one, in about a second."""
        self.__dict__.pop("evaluator", None)

    @property
    def sampled_count(self) -> int:
        """Structures, the first ones, that random genomes have."""
        return len(self.structures)

    @property
    def live_structures(self) -> NDArray[np.int64]:
        """Indices of the structures that a mutation may change to."""
        return np.arange(len(self.structures))

    def sample(self, random: np.random.Generator, count: int) -> Population:
        """Random genomes, not yet legal: uniform over structures and tables. Decisions that start at their
        maximum have their last value."""
        structure = random.integers(0, self.sampled_count, count)
        return self._clear_unused_genes(Population(structure, self._sample_genes(random, count)))

    def sample_uniformly(self, random: np.random.Generator, number: int, count: int) -> Population:
        """Random genomes of one structure, not yet legal: uniform over its combinations of values."""
        genes = random.integers(0, self.decision_sizes, (count, len(self.decision_sizes)))
        return self._clear_unused_genes(Population(np.full(count, number), genes))

    def _sample_genes(self, random: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Random genes for `sample`."""
        genes = random.integers(0, self.decision_sizes, (count, len(self.decision_sizes)))
        genes[:, self._start_at_max_columns] = self._max_values
        return genes

    def cross(self, random: np.random.Generator, mothers: Population, fathers: Population) -> Population:
        """Children with the structure of the mother. Each decision that both parents have comes from either
        of them, every other from the mother."""
        shared = self.uses_decision[mothers.structure] & self.uses_decision[fathers.structure]
        from_father = shared & (random.random(mothers.genes.shape) < SPACE.father_share)
        return self._clear_unused_genes(
            Population(mothers.structure, np.where(from_father, fathers.genes, mothers.genes))
        )

    def mutate(
        self, random: np.random.Generator, parents: Population, structure_rate: float = SPACE.structure_rate
    ) -> Population:
        """Move one or two decisions by one step, or sample them again; sometimes change the structure. With a
        new tile, decisions that start at their maximum get their last value again."""
        count = len(parents)
        genes, structure = parents.genes.copy(), parents.structure
        for rows in (np.arange(count), np.flatnonzero(random.random(count) < SPACE.second_change_share)):
            column = self._pick_decisions(random, structure[rows])
            near = self._neighbours.sample_neighbour(random, column, genes[rows, column])
            far = random.integers(0, self.decision_sizes[column])
            genes[rows, column] = np.where(random.random(len(rows)) < SPACE.near_share, near, far)
            # A vector width that was illegal with the old tile may be legal with the new one.
            genes[rows[self._is_tiling[column], None], self._start_at_max_columns] = self._max_values
        moved = np.flatnonzero(random.random(count) < structure_rate)
        structure = structure.copy()
        structure[moved] = self.live_structures[random.integers(0, len(self.live_structures), len(moved))]
        missing = self.uses_decision[structure[moved]] & ~self.uses_decision[parents.structure[moved]]
        genes[moved] = np.where(missing, self._sample_genes(random, len(moved)), genes[moved])
        return self._clear_unused_genes(Population(structure, genes))

    def _pick_decisions(self, random: np.random.Generator, structure: NDArray[np.int64]) -> NDArray[np.int64]:
        """A random decision of each of these structures, as a column of the genome."""
        return np.asarray(
            self._decision_order[structure, random.integers(0, self._decision_counts[structure])]
        )

    def compute_quantities(self, population: Population) -> dict[str, NDArray[np.float64]]:
        """Name -> value for every genome, of each quantity of the analysis."""
        columns: dict[str, NDArray[np.float64]] = {}
        for rows, quantities in self.iterate_quantities(population):
            for name, values in quantities.items():
                columns.setdefault(name, np.zeros(len(population)))[rows] = values
        return columns

    def get_hole_values(self, population: Population, row: int) -> dict[str, int]:
        """Hole -> number of one genome."""
        values: dict[str, int] = {}
        for d in self.structures[population.structure[row]].decisions:
            numbers = d.get_values(int(population.genes[row, self._column_by_name[d.name]]))
            values |= dict(zip(d.holes, numbers, strict=True))
        return values

    def build_schedule(self, population: Population, row: int) -> Schedule:
        """Build the Schedule of one genome, checking every step."""
        return Schedule(self.op).apply_steps(*self._fill_steps(population, row))

    def _fill_steps(self, population: Population, row: int) -> tuple[Step, ...]:
        """The steps of one genome, not checked."""
        values = self.get_hole_values(population, row)
        return tuple(s.fill_holes(values) for s in self.structures[population.structure[row]].steps)

    def locate(self, schedule: Schedule) -> Population | None:
        """The genome of a schedule: the inverse of `build_schedule`. None where no structure makes it."""
        kinds = [type(step) for step in schedule.steps]
        for number, structure in enumerate(self.structures):
            if [type(step) for step in structure.steps] != kinds:
                continue
            values: dict[str, int] = {}
            for step, filled in zip(structure.steps, schedule.steps, strict=True):
                values |= step.read_holes(filled)
            genes = np.zeros((1, len(self.decisions)), np.int64)
            for d in structure.decisions:
                is_equal = (d.table == [values.get(hole, -1) for hole in d.holes]).all(axis=1)
                genes[0, self._column_by_name[d.name]] = is_equal.argmax()
            found = Population(np.array([number]), genes)
            if self._fill_steps(found, 0) == schedule.steps:
                return found
        return None

    def list_neighbours(self, population: Population, row: int) -> Population:
        """All genomes that one small move of one decision makes of a genome, legal or not."""
        columns = np.flatnonzero(self.uses_decision[population.structure[row]]).tolist()
        moved = [self._neighbours.list_neighbours(c, int(population.genes[row, c])) for c in columns]
        genes = np.repeat(population.genes[[row]], sum(map(len, moved)), axis=0)
        at = np.repeat(columns, [len(values) for values in moved])
        genes[np.arange(len(genes)), at] = np.concatenate([*moved, np.zeros(0, np.int64)])
        return Population(np.repeat(population.structure[row], len(genes)), genes)

    def find_legal(self, population: Population) -> NDArray[np.bool_]:
        """Whether each genome keeps all rules."""
        legal = np.ones(len(population), dtype=bool)
        for found in self.find_violations(population):
            legal[found.rows] = False
        return legal

    def get_structure_name(self, population: Population, row: int) -> str:
        """The name of the structure of one genome."""
        return self.structures[int(population.structure[row])].name

    def compute_keys(self, population: Population) -> NDArray[np.int64]:
        """A number per genome, not 0, equal for equal genomes: to drop duplicates."""
        number = self.structure_ids[population.structure]
        key: NDArray[np.int64] = (
            population.genes @ self._hash_multipliers[1:] + number * self._hash_multipliers[0]
        )
        return key + 1

    def _clear_unused_genes(self, population: Population) -> Population:
        """Set genes that a structure does not use to 0, so that equal schedules have equal genomes."""
        return Population(
            population.structure, np.where(self.uses_decision[population.structure], population.genes, 0)
        )

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
            self._repair_operators[rule] = make_repair_operator(rule, self.decisions)
        return self._repair_operators[rule]

    def find_violations(self, population: Population) -> Iterator[RuleViolation]:
        """The rules that some genomes break, with the rows of the population."""
        for rows, genomes in self._sort_by_structure(population):
            for evaluator, first, own in self._iterate_evaluators(genomes):
                for found in evaluator.find_violations(own):
                    yield replace(found, rows=rows[first + found.rows])

    def extract_inputs(self, population: Population, make_inputs: InputFunction) -> ModelInputs:
        """The inputs of the models for every genome."""
        found = allocate_inputs(len(population))
        for rows, figures in self.iterate_quantities(population):
            found.set_rows(rows, make_inputs(figures))
        return found

    def iterate_quantities(self, population: Population) -> Iterator[tuple[NDArray[np.intp], Quantities]]:
        """(rows of the population, quantities of these rows) of each chunk of genomes."""
        for rows, genomes in self._sort_by_structure(population):
            columns: Quantities = {}
            for evaluator, first, own in self._iterate_evaluators(genomes):
                for name, part, values in evaluator.compute_quantities(own):
                    if name not in columns:
                        columns[name] = np.zeros(len(rows))
                    columns[name][first + part.start : first + part.stop] = values
            yield rows, columns

    def _sort_by_structure(self, population: Population) -> Iterator[tuple[NDArray[np.intp], SortedGenomes]]:
        """(rows of the population, their genomes sorted by structure) of each chunk."""
        for start in range(0, len(population), SPACE.chunk_rows):
            # NumPy sorts integers of 16 bits by counting.
            structure = population.structure[start : start + SPACE.chunk_rows].astype(np.int16)
            rows = start + np.argsort(structure, kind="stable")
            bounds = [0, *np.cumsum(np.bincount(structure, minlength=len(self.structures))).tolist()]
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
