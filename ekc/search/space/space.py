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

from ekc.devices.device import Peaks
from ekc.ir.hardware.limits import Limits
from ekc.ir.operator import Operator
from ekc.ir.refusal import Refusal
from ekc.ir.rules.launch import iterate_checks
from ekc.ir.schedule.schedule import Schedule
from ekc.processes.child import RemoteWorker
from ekc.search.cost_model.features import ModelInputs, allocate_inputs
from ekc.search.data.population import Population
from ekc.search.sketches.builder import Structure
from ekc.search.sketches.decisions import NeighbourTable
from ekc.search.sketches.multi_level_tiling import derive_structures
from ekc.search.space.background_worker import BackgroundWorker
from ekc.search.space.partition import PARTITION_COUNT, SpacePartition, make_partitions, merge_decisions

T = TypeVar("T")


class Space:
    """All schedules of an operator that its structures (or those `chosen`) can express, on a target with
    these limits."""

    def __init__(
        self,
        op: Operator,
        limits: Limits,
        chosen_structures: tuple[Structure, ...] = (),
        worker: RemoteWorker | None = None,
    ) -> None:
        """`worker`: a process, no other space's, that takes its part of the work, which makes no difference
        to what is found; it knows none but the structures of the operator."""
        self.op, self.limits = op, limits
        self.structures: tuple[Structure, ...] = chosen_structures or derive_structures(op, limits)
        self.decisions = merge_decisions(self.structures)
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
        self._neighbours = NeighbourTable([d.table for d in self.decisions])
        # Of sums of products with large odd numbers, all bits differ.
        self._hash_multipliers = (
            np.random.default_rng(0).integers(0, 2**62, len(names) + 1, dtype=np.int64) * 2 + 1
        )
        self._column_by_name = {name: i for i, name in enumerate(names)}
        self.partitions = make_partitions(op, limits, self.structures, self.decisions)
        self._background_worker: BackgroundWorker | None = None
        if worker is not None and not chosen_structures and len(self.partitions) == PARTITION_COUNT:
            self._background_worker = BackgroundWorker(worker, op, limits, PARTITION_COUNT - 1)

    def sample(self, random: np.random.Generator, count: int) -> Population:
        """Uniform over structures, then over the table of every decision that is not eager. Not yet legal."""
        structure = random.integers(0, len(self.structures), count)
        return self._clear_unused_genes(Population(structure, self._sample_genes(random, count)))

    def _sample_genes(self, random: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Genes as they are drawn: an eager decision at its last value."""
        genes = random.integers(0, self.decision_sizes, (count, len(self.decision_sizes)))
        genes[:, self._start_at_max_columns] = self._max_values
        return genes

    def cross(self, random: np.random.Generator, mothers: Population, fathers: Population) -> Population:
        """Structure of the mother; each decision that both have from either, the others from the mother."""
        both = self.uses_decision[mothers.structure] & self.uses_decision[fathers.structure]
        taken = both & (random.random(mothers.genes.shape) < 0.5)
        return self._clear_unused_genes(
            Population(mothers.structure, np.where(taken, fathers.genes, mothers.genes))
        )

    def mutate(
        self, random: np.random.Generator, parents: Population, structure_rate: float = 0.1
    ) -> Population:
        """Move one or two decisions by one step, or redraw them; sometimes change the structure. With a new
        tile, eager decisions begin at their last value again."""
        count = len(parents)
        genes, structure = parents.genes.copy(), parents.structure
        for rows in (np.arange(count), np.flatnonzero(random.random(count) < 0.4)):
            column = self._pick_decisions(random, structure[rows])
            near = self._neighbours.sample_neighbour(random, column, genes[rows, column])
            far = random.integers(0, self.decision_sizes[column])
            genes[rows, column] = np.where(random.random(len(rows)) < 0.5, near, far)
            # Another tile may let a width be what the last one did not.
            genes[rows[self._is_tiling[column], None], self._start_at_max_columns] = self._max_values
        moved = np.flatnonzero(random.random(count) < structure_rate)
        structure = structure.copy()
        structure[moved] = random.integers(0, len(self.structures), len(moved))
        missing = self.uses_decision[structure[moved]] & ~self.uses_decision[parents.structure[moved]]
        genes[moved] = np.where(missing, self._sample_genes(random, len(moved)), genes[moved])
        return self._clear_unused_genes(Population(structure, genes))

    def _pick_decisions(self, random: np.random.Generator, structure: NDArray[np.int64]) -> NDArray[np.int64]:
        """One decision of each structure, as its column."""
        return np.asarray(
            self._decision_order[structure, random.integers(0, self._decision_counts[structure])]
        )

    def repair(self, random: np.random.Generator, population: Population) -> tuple[Population, Counter[str]]:
        """Shrink what breaks a rule until it is legal; what stays illegal is dropped and counted by rule."""
        seeds = random.integers(0, 2**63, len(self.partitions)).tolist()
        genes, legal = population.genes.copy(), np.zeros(len(population), dtype=bool)
        dropped: Counter[str] = Counter()
        for rows, mended in self._map_partitions(SpacePartition.repair, population, seeds):
            genes[rows], legal[rows] = mended.genomes.genes, mended.is_legal
            dropped += mended.dropped_by_rule
        return Population(population.structure, genes)[legal], dropped

    def extract_inputs(self, population: Population, peaks: Peaks) -> ModelInputs:
        """What the models see of every genome, for a device with these peaks."""
        found = allocate_inputs(len(population))
        for rows, own in self._map_partitions(
            SpacePartition.extract_inputs, population, [peaks] * len(self.partitions)
        ):
            found.set_rows(rows, own)
        return found

    def _map_partitions(
        self,
        method: Callable[[SpacePartition, Population, Any], T],
        population: Population,
        arguments: Sequence[Any],
    ) -> Iterator[tuple[NDArray[np.intp], T]]:
        """What a method of the parts says of the genomes of each, and which rows these are."""
        shares = list(self._split_population(population))
        asked = [(own, more) for (_, own), more in zip(shares, arguments, strict=True)]
        if self._background_worker is None:
            found = [method(part, *own) for part, own in zip(self.partitions, asked, strict=True)]
        else:
            found = self._background_worker.map_partitions(self.partitions, method, asked)
        yield from zip((rows for rows, _ in shares), found, strict=True)

    def _split_population(self, population: Population) -> Iterator[tuple[NDArray[np.intp], Population]]:
        """The genomes of each part, and which rows they are."""
        number = population.structure % len(self.partitions)
        for i in range(len(self.partitions)):
            rows = np.flatnonzero(number == i)
            yield rows, population[rows]

    def compute_quantities(self, population: Population) -> dict[str, NDArray[np.float64]]:
        """The analysis of every genome, by quantity."""
        out: dict[str, NDArray[np.float64]] = {}
        for part, (rows, own) in zip(self.partitions, self._split_population(population), strict=True):
            for some, in_order in part.iterate_quantities(own):
                for name, column in in_order.items():
                    if name not in out:
                        out[name] = np.zeros(len(population))
                    out[name][rows[some]] = column
        return out

    def get_hole_values(self, population: Population, row: int) -> dict[str, int]:
        """The decisions of one genome as plain numbers, by hole name."""
        values: dict[str, int] = {}
        for d in self.structures[population.structure[row]].decisions:
            numbers = d.get_values(int(population.genes[row, self._column_by_name[d.name]]))
            values |= dict(zip(d.holes, numbers, strict=True))
        return values

    def build_schedule(self, population: Population, row: int) -> Schedule:
        """One genome as a Schedule, every step checked."""
        values = self.get_hole_values(population, row)
        return Schedule(self.op).apply_steps(
            *(s.fill_holes(values) for s in self.structures[population.structure[row]].steps)
        )

    def get_structure_name(self, population: Population, row: int) -> str:
        """Which structure a genome has, in words."""
        return self.structures[int(population.structure[row])].name

    def find_refusals(self, population: Population, row: int) -> Iterator[Refusal]:
        """Why one genome is not legal."""
        structure = int(population.structure[row])
        part = self.partitions[structure % len(self.partitions)]
        program = part.evaluator.build_program(
            structure // len(self.partitions), self.get_hole_values(population, row)
        )
        for check in iterate_checks(program, self.limits):
            refusal = check.explain()
            if refusal is not None:
                yield refusal

    def compute_keys(self, population: Population) -> NDArray[np.int64]:
        """A number per genome, equal for equal ones and not 0: for throwing duplicates out."""
        key: NDArray[np.int64] = (
            population.genes @ self._hash_multipliers[1:] + population.structure * self._hash_multipliers[0]
        )
        return key + 1

    def _clear_unused_genes(self, population: Population) -> Population:
        """Genes that a structure does not use are 0, so that they make no false variety."""
        return Population(
            population.structure, np.where(self.uses_decision[population.structure], population.genes, 0)
        )
