"""A space whose structures evolve: edited lists of steps that keep the rules join those of the rules.

An edit of the structure of a good genome is repaired (`step_edits.py`, `step_repair.py`). The edited
structure is scored with the numbers of its parent and with random ones; the best join the population. Only
they record their array operations. An edited structure that no genome has is replaced by a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ekc.errors import ScheduleError
from ekc.ir.analysis.analysis import quantities
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.program import Program, make_initial_program
from ekc.ir.rules.launch import iterate_checks
from ekc.ir.schedule.schedule import Schedule
from ekc.search.data.defaults import EVOLUTION
from ekc.search.data.population import Population
from ekc.search.sketches.builder import Structure, is_buildable
from ekc.search.sketches.decisions import Decision
from ekc.search.sketches.rewritten_operators import rename_conflicting_decisions
from ekc.search.space.constraints import SortedGenomes, StructureEvaluator
from ekc.search.space.space import Space, merge_decisions
from ekc.search.space.step_edits import StepEditor, make_decisions
from ekc.search.space.step_repair import repair_steps


class EvolvingSpace(Space):
    """A space that edits its structures while it is searched."""

    def __init__(
        self, op: Operator, limits: LaunchLimits, chosen_structures: tuple[Structure, ...] = ()
    ) -> None:
        super().__init__(op, limits, chosen_structures)
        self.rule_count = len(self.structures)
        """Number of structures of the rules or the user, which are the first ones; the rest are edited."""
        self._numbers = list(range(self.rule_count))
        """Number of the structure at each place, none of them given twice."""
        self._given_count = self.rule_count
        self._used_places: set[int] = set()
        """Places of the edited structures that the population has."""
        self._built_places: set[int] = set()
        """Places of those that a schedule was built of, which no other structure may take."""
        self._tried_places: set[int] = set()
        """Places of those that are not kept yet."""
        self._evaluators: dict[int, StructureEvaluator] = {}
        """Place of an edited structure -> its evaluator."""
        self._seen_steps = {s.steps for s in self.structures}

    @property
    def sampled_count(self) -> int:
        """Random genomes have a structure of the rules."""
        return self.rule_count

    @property
    def live_structures(self) -> NDArray[np.int64]:
        """The structures of the rules and the edited ones of the population."""
        return np.array([*range(self.rule_count), *sorted(self._used_places)])

    @cached_property
    def evaluator(self) -> StructureEvaluator:
        """Rules and analysis of the structures that are not edited."""
        return self._make_evaluator(self.structures[: self.rule_count])

    def _iterate_evaluators(
        self, genomes: SortedGenomes
    ) -> Iterator[tuple[StructureEvaluator, int, SortedGenomes]]:
        """The structures of the rules share an evaluator; each edited one has its own."""
        if genomes.bounds[self.rule_count]:
            yield self.evaluator, 0, genomes.select(0, self.rule_count)
        for place in range(self.rule_count, len(self.structures)):
            if genomes.bounds[place + 1] > genomes.bounds[place]:
                yield self._get_evaluator(place), genomes.bounds[place], genomes.select(place, place + 1)

    def _get_evaluator(self, place: int) -> StructureEvaluator:
        own = self.structures[place : place + 1]
        if place in self._tried_places:
            return StructureEvaluator(self.op, own, self.limits, {})
        if place not in self._evaluators:
            self._evaluators[place] = self._make_evaluator(own)
        return self._evaluators[place]

    def build_schedule(self, population: Population, row: int) -> Schedule:
        """See `Space`; the structure keeps its place from now on."""
        self._built_places.add(int(population.structure[row]))
        return super().build_schedule(population, row)

    def find_edited(self, schedule: Schedule) -> Structure | None:
        """The edited structure that makes a schedule; None if a rule's does, or none."""
        found = self.locate(schedule)
        structure = None if found is None else self.structures[int(found.structure[0])]
        return structure if structure and structure.edits else None

    def edit_structures(self, random: np.random.Generator, parents: Population) -> Population:
        """Edit the structures of some of the best parents. Returns genomes of the new structures, with the
        numbers of the parent and others; they may be illegal before `repair`."""
        self._release_places(parents)
        best = parents[: EVOLUTION.parent_count]
        editor = StepEditor(self.op, random)
        tables = {d.name: d.table for d in self.decisions}
        found: list[tuple[Structure, int, int]] = []
        for _ in range(EVOLUTION.drawn_edits if len(best) else 0):
            if len(found) == EVOLUTION.tried_edits:
                break
            mother, father = _pick_parent(random, best), _pick_parent(random, best)
            structure = self._edit_structure(editor, best, mother, father)
            if structure is not None:
                self._seen_steps.add(structure.steps)
                renamed = rename_conflicting_decisions(structure, tables, f"{len(self._seen_steps)}/")
                found.append((renamed, mother, father))
        places = self._place_structures([structure for structure, _, _ in found])
        self._tried_places = set(places)
        edited = best[:0]
        for place, (_, mother, father) in zip(places, found, strict=True):
            edited = edited + self._vary_numbers(random, best, mother, father, place)
        return edited

    def keep_structures(
        self, edited: Population, scores: NDArray[np.float64], worst_score: float
    ) -> Population:
        """See `EvolvingSearchSpace`; at most `EVOLUTION.kept_edits` structures are kept."""
        order = np.argsort(scores, kind="stable")[: int((scores < worst_score).sum())]
        kept = list(dict.fromkeys(edited.structure[order].tolist()))[: EVOLUTION.kept_edits]
        self._tried_places = set()
        self._used_places |= set(kept)
        return edited[np.isin(edited.structure, kept)]

    def _release_places(self, parents: Population) -> None:
        """Note which edited structures the population has. The place of any other edited structure is free
        for a new one, unless a schedule was built of it."""
        present = set(np.unique(parents.structure).tolist())
        self._used_places = {place for place in present if place >= self.rule_count}
        for place in set(self._evaluators) - self._used_places:
            del self._evaluators[place]

    def _edit_structure(
        self, editor: StepEditor, best: Population, mother: int, father: int
    ) -> Structure | None:
        """A new structure that can be built; None where the edit makes none, or one that was tried."""
        own, other = (self.structures[int(best.structure[row])] for row in (mother, father))
        values = self.get_hole_values(best, father) | self.get_hole_values(best, mother)
        name = f"edit {len(self._seen_steps)}"
        edit = editor.draw(own.steps, values, other.steps, name)
        if edit is None:
            return None
        values |= {hole: int(column[0]) for hole, column in edit.numbers.items()}
        repaired = repair_steps(self.op, edit.steps, values, self.limits, edit.needed)
        if repaired is None or repaired.steps in self._seen_steps:
            return None
        known = {d.name: d for d in (*other.decisions, *own.decisions)}
        known |= {d.name: d for d in (*repaired.decisions, *make_decisions(name, edit, repaired.program))}
        holes = {hole.name for step in repaired.steps for _, hole in step.list_holes()}
        decisions = tuple(d for d in known.values() if not holes.isdisjoint(d.holes))
        structure = Structure(
            f"{own.name}, {edit.text}", repaired.steps, decisions, own.rules, (*own.edits, edit.text)
        )
        is_new = is_buildable(self.op, structure) and self._has_new_analysis(own, repaired.program, values)
        return structure if is_new else None

    def _has_new_analysis(self, structure: Structure, program: Program, values: Mapping[str, int]) -> bool:
        """Whether a Program breaks a rule, or does something else than the structure with these numbers."""
        before = make_initial_program(self.op)
        for step in structure.steps:
            before = step.fill_holes(values).apply(before)
        try:
            if not all(np.all(check.ok) for check in iterate_checks(program, self.limits)):
                return True
            pairs = (quantities(x, self.limits).values() for x in (before, program))
            return not all(map(np.array_equal, *pairs))
        except ScheduleError:
            return True

    def _place_structures(self, new: Sequence[Structure]) -> list[int]:
        """Give new structures places, and new decisions columns; those of released structures first."""
        taken = {*range(self.rule_count), *self._used_places, *self._built_places}
        free = [place for place in range(len(self.structures)) if place not in taken]
        places = [*free, *range(len(self.structures), len(self.structures) + len(new))][: len(new)]
        structures = list(self.structures)
        for place, structure in zip(places, new, strict=True):
            structures[place : place + 1] = [structure]
            self._numbers[place : place + 1] = [self._given_count]
            self._given_count += 1
        needed = merge_decisions([structures[place] for place in sorted({*taken, *places})])
        decisions = _keep_columns(self.decisions, needed)
        self._set_structures(tuple(structures), decisions)
        self.structure_ids = np.array(self._numbers)
        self._repair_operators.clear()
        return places

    def _vary_numbers(
        self, random: np.random.Generator, best: Population, mother: int, father: int, place: int
    ) -> Population:
        """Genomes of a new structure: the numbers of the mother, or else the father; one half mutated."""
        count = EVOLUTION.genomes_per_edit
        rows = best[[mother, father]] + self.sample(random, 0)
        has = self.uses_decision[rows.structure]
        inherited = np.where(has[0], rows.genes[0], rows.genes[1])
        genes = np.where(has.any(axis=0), inherited, self._sample_genes(random, count))
        first = self._clear_unused_genes(Population(np.full(count, place), genes))
        half = count // 2
        return first[:half] + self.mutate(random, first[half:], structure_rate=0.0)


def _pick_parent(random: np.random.Generator, best: Population) -> int:
    """A random row of the genomes: first a random structure, then a random row of it."""
    present = np.unique(best.structure)
    rows = np.flatnonzero(best.structure == present[random.integers(len(present))])
    return int(rows[random.integers(len(rows))])


def _keep_columns(before: Sequence[Decision], needed: Sequence[Decision]) -> tuple[Decision, ...]:
    """Decisions in columns: those needed before stay, and new ones take the columns of others first."""
    by_name = {d.name: d for d in needed}
    columns: list[Decision | None] = [by_name.pop(d.name, None) for d in before]
    new = list(by_name.values())
    for column, decision in enumerate(columns):
        if decision is None:
            columns[column] = new.pop(0) if new else before[column]
    return (*(d for d in columns if d is not None), *new)
