"""Structures that a user writes as lists of steps with holes, checked and made ready for the search.

A search must know what each number is for, because repair lowers those that a broken rule depends on. It
follows from the steps that have the holes (`StructureReader`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.argument_checks import format_value
from ekc.display import shorten
from ekc.errors import EkcError, InvalidInput
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.operator import Operator
from ekc.ir.program import Loop, Program, make_initial_program
from ekc.ir.rules.launch import iterate_checks
from ekc.ir.schedule import Hole, Split, Step
from ekc.ir.schedule.holes import MAX_HOLE_VALUES
from ekc.search.sketches.builder import Structure
from ekc.search.sketches.decisions import Decision, sort_rows
from ekc.search.sketches.rules import Rule
from ekc.search.space.hole_uses import find_kind, name_use
from ekc.search.space.space import Space
from ekc.search.space.space_structure import SpaceStructure
from ekc.tables import count_nouns

MAX_PRODUCT = 2**62
"""Most that the largest factors of all splits of a structure may multiply to, for 64-bit integers."""
FILLINGS = 2 * MAX_HOLE_VALUES
"""Fillings that steps are checked with; each value of a hole is in one of them."""
REPAIRED_FILLINGS = 512
"""Fillings of a structure among which one must be legal, after repair."""


def make_user_space(op: Operator, limits: LaunchLimits, space: Any, kind: type[Space] = Space) -> Space:
    """The space of structures that a user wrote: a list of steps, or a list of such lists or of
    `SpaceStructure`s. kind: class of the space.

    Raises `InvalidInput`, which names the structure and its step or hole, for a hole without values, or with
    two lists of them; a step that no filling makes legal; a structure without a legal schedule.
    """
    listed = list(space) if isinstance(space, list | tuple) else []
    if not listed:
        raise InvalidInput(
            f"space: {format_value(space)} is no list of steps; write space=[Split(...), ...] with ekc.hole"
        )
    if isinstance(listed[0], Step):
        listed = [listed]
    reader = StructureReader(op)
    for number, given in enumerate(listed, 1):
        if isinstance(given, SpaceStructure):
            reader.read(given.name, given.steps, given.rules)
        else:
            reader.read(f"own {number}" if len(listed) > 1 else "own", given)
    if not reader.holes:
        raise InvalidInput("space: no step has a hole; write one with ekc.hole, or use start=[schedule]")
    made = kind(op, limits, reader.make_structures())
    structures = count_nouns(len(made.structures), "structure")
    made.origin = f"the user's: {structures} with {count_nouns(len(made.decisions), 'hole')}"
    for number in range(len(made.structures)):
        _check_has_legal(made, number)
    return made


class StructureReader:
    """Reads structures one by one, and what their holes are used for."""

    def __init__(self, op: Operator) -> None:
        self.op, self._random = op, np.random.default_rng(0)
        self.holes: dict[str, tuple[str, Hole]] = {}
        """Name of a hole -> (first structure that has it, the hole)."""
        self._decisions: dict[str, tuple[str, Hole]] = {}
        """Name of a decision -> (first structure that has it, one of its holes)."""
        self._structures: list[Structure] = []
        self._filled_rows: dict[str, NDArray[np.int64]] = {}
        """Name of a decision -> [FILLINGS, columns] random values, of which the first is the
        smallest."""
        self._fillings: dict[str, NDArray[np.int64]] = {}
        """Name of a hole -> its column of these."""
        self._kinds: dict[str, str] = {}
        """Name of a hole that is a factor of a split -> kind of the loop."""
        self._uses: dict[str, dict[str, None]] = {}
        """Name of a decision -> its uses."""

    def read(self, name: str, steps: Any, rules: tuple[Rule, ...] = ()) -> None:
        """Read and check one structure. Raises `InvalidInput`."""
        if not isinstance(steps, list | tuple) or not steps:
            raise InvalidInput(
                f"space: {name}: {format_value(steps)} is no list of steps; write [Split(...), ...]"
            )
        if name in [structure.name for structure in self._structures]:
            raise InvalidInput(f"space: two structures are {name!r}; leave one of them out")
        program = make_initial_program(self.op)
        for number, step in enumerate(steps, 1):
            if not isinstance(step, Step):
                raise InvalidInput(
                    f"space: {name}, step {number}: {format_value(step)} is no step; "
                    "ekc.ir.schedule has their classes"
                )
            try:
                for field, hole in step.list_holes():
                    self._add_hole(name, field, hole)
                program = self._apply(step, program)
            except EkcError as problem:
                where = f"{name}, step {number} {shorten(step.to_python(), 60)}"
                raise InvalidInput(f"space: {where}: {problem}") from None
        loops = {loop.name: loop for nest in program.nests for loop in nest.loops}
        for step in steps:
            self._note_uses(step, program, loops)
        self._structures.append(Structure(name, tuple(steps), (), frozenset(rules)))

    def _add_hole(self, structure: str, field: str, hole: Hole) -> None:
        """Keep a hole and random values for it. Raises `InvalidInput` for one that has no values, or a 0 in
        a field that cannot be 0, or shares its name with another."""
        if not hole.rows:
            raise InvalidInput(f'hole {hole.name!r} has no values; write ekc.hole("{hole.name}", [1, 2, 4])')
        if field == "factors" and min(row[hole.column] for row in hole.rows) < 1:
            raise InvalidInput(f"hole {hole.name!r} has the value 0, at least 1 as a factor; use 1")
        for key, known in ((hole.name, self.holes), (hole.decision, self._decisions)):
            first, other = known.setdefault(key, (structure, hole))
            if (other.decision, other.rows) != (hole.decision, hole.rows):
                raise InvalidInput(
                    f"hole {key!r} has other values in {first}; give one of the two another name"
                )
        if hole.decision not in self._filled_rows:
            table = sort_rows(np.array(hole.rows))
            picks = np.arange(FILLINGS) % len(table)
            self._random.shuffle(picks[1:])
            self._filled_rows[hole.decision] = table[picks]
        self._fillings[hole.name] = self._filled_rows[hole.decision][:, hole.column]

    def _apply(self, step: Step, program: Program) -> Program:
        """The Program of all fillings after a step. Raises `EkcError` where the step refuses a value; a split
        only where it refuses all, as factors depend on those of other splits."""
        before, program = len(program.checks), step.fill_holes(self._fillings).apply(program)
        for check in program.checks[before:]:
            refused = np.flatnonzero(~check.mask(FILLINGS))
            if len(refused) == FILLINGS or (len(refused) and not isinstance(step, Split)):
                raise InvalidInput(str(check.explain(int(refused[0]))))
        return program

    def _note_uses(self, step: Step, program: Program, loops: Mapping[str, Loop]) -> None:
        """Note what the numbers of a step are for."""
        if isinstance(step, Split):
            for number, hole in enumerate(step.factors, 1):
                if isinstance(hole, Hole):
                    kind = find_kind(loops.get(f"{step.loop}.{number}"))
                    self._kinds.setdefault(hole.name, kind)
        for field, hole in step.list_holes():
            self._uses.setdefault(hole.decision, {})[name_use(step, field, program)] = None

    def make_structures(self) -> tuple[Structure, ...]:
        """The structures with their decisions. Raises `InvalidInput` for a value with an unused number, and
        for factors beyond 64-bit integers."""
        decisions = {name: self._make_decision(name) for name in self._uses}
        found = []
        for structure in self._structures:
            names = dict.fromkeys(hole.decision for s in structure.steps for _, hole in s.list_holes())
            own = tuple(decisions[name] for name in names)
            reach = math.prod(int(d.table.prod(axis=1).max()) for d in own if d.kinds)
            if reach > MAX_PRODUCT:
                raise InvalidInput(
                    f"space: {structure.name}: the factors of its splits multiply to {reach}, at most "
                    f"{MAX_PRODUCT}; leave out values beyond the extents of the loops"
                )
            found.append(replace(structure, decisions=own))
        return tuple(found)

    def _make_decision(self, name: str) -> Decision:
        """The decision of the holes of a name."""
        own = {hole.column: hole for _, hole in self.holes.values() if hole.decision == name}
        table = sort_rows(np.array(own[min(own)].rows))
        for column in range(table.shape[1]):
            if column not in own:
                raise InvalidInput(
                    f"space: hole {name!r}: number {column + 1} of {table.shape[1]} is in no step; "
                    "leave it out of the values"
                )
        holes = tuple(own[column].name for column in range(table.shape[1]))
        is_factor = any(hole in self._kinds for hole in holes)
        kinds = [
            "lane" if len(np.unique(table[:, i])) == 1 else self._kinds.get(hole, "")
            for i, hole in enumerate(holes)
        ]
        is_width = not is_factor and all(use.startswith(("vector.", "move.")) for use in self._uses[name])
        return Decision(
            name, holes, table, tuple(kinds) if is_factor else (), is_width, tuple(self._uses[name])
        )


def _check_has_legal(space: Space, number: int) -> None:
    """Raise `InvalidInput` where no filling of a structure is legal, also after repair."""
    name = space.structures[number].name
    drawn = space.sample_uniformly(np.random.default_rng(0), number, REPAIRED_FILLINGS)
    drawn.genes[0] = 0
    try:
        legal, dropped = space.repair(np.random.default_rng(0), drawn)
    except EkcError as problem:
        raise InvalidInput(f"space: {name}: {problem}") from None
    if not len(legal):
        smallest = space.evaluator.build_program(number, space.get_hole_values(drawn, 0))
        refusal = next(r for check in iterate_checks(smallest, space.limits) if (r := check.explain()))
        why = ", ".join(f"{rule} ({count})" for rule, count in dropped.most_common(3))
        raise InvalidInput(
            f"space: {name} has no legal schedule: {REPAIRED_FILLINGS} fillings, repaired as far as their "
            f"values allow, break {why}; the smallest values: {refusal}"
        )
