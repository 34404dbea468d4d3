"""Edits of the steps of a structure: insert, delete, exchange and move a step, or cross two structures.

Inserted steps come from the menu of the Program at their place (`ekc.ir.schedule.menu`), with its numbers as
a new decision. A crossover takes the steps on one tensor or one axis from another structure. An edited list
need not apply; `step_repair.py` makes it apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ekc.ir.operator import Operator
from ekc.ir.program import Program, make_initial_program
from ekc.ir.schedule import (
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Divide,
    Fuse,
    Hole,
    Pack,
    Pipeline,
    Reorder,
    RFactor,
    Split,
    Step,
    Tensorize,
    Unroll,
    Vectorize,
)
from ekc.ir.schedule.menu import Family, list_families
from ekc.search.data.defaults import EVOLUTION
from ekc.search.sketches.decisions import Decision, sort_rows
from ekc.search.space.hole_uses import find_kind, name_use

_ORDER = (
    (RFactor, Pack, Divide, ComputeInline),
    (Fuse, Split),
    (Reorder,),
    (Bind,),
    (CacheWrite, ComputeAt),
    (CacheRead,),
    (Tensorize, Pipeline),
    (Unroll, Vectorize),
)
"""Classes of steps in the order in which a list has them. `atomic` is not used: its sums differ from run to
run."""
_PHASES: dict[type[Step], int] = {kind: phase for phase, kinds in enumerate(_ORDER) for kind in kinds}
_INSERTED = (RFactor, Pack, Split, Bind, CacheRead, Tensorize, Pipeline, Unroll, Vectorize)
"""Classes of inserted steps: they add a loop, a copy, a launch, or a property of a loop. All other classes
reorder or merge loops and computes; repair, exchange and crossover do that too."""
DRAWS = 4
"""Places that are drawn for an edit, at most."""
Steps = tuple[Step, ...]
OptionT = TypeVar("OptionT")


@dataclass(frozen=True, eq=False)
class StepEdit:
    """An edited list of steps, not yet repaired."""

    steps: Steps
    needed: Steps
    """New steps: an edit without them is none."""
    text: str
    """The change in a few words: `insert pipeline k.0`."""
    numbers: Mapping[str, np.ndarray]
    """New hole -> its values, which belong together."""


@dataclass(frozen=True, eq=False)
class StepEditor:
    """Draws edits of step lists of one operator."""

    op: Operator
    random: np.random.Generator

    def draw(self, steps: Steps, values: Mapping[str, int], father: Steps, name: str) -> StepEdit | None:
        """Draw an edit of steps; None where `DRAWS` places offered none.

        values: hole -> its number in the schedule that the menu is made for. father: the steps of another
        structure. name: of the decision of new holes.
        """
        edits: tuple[Callable[[], StepEdit | None], ...] = (
            lambda: self._insert(steps, values, name),
            lambda: self._delete(steps),
            lambda: self._exchange(steps, values, name),
            lambda: self._move(steps),
            lambda: self._cross(steps, father),
        )
        draw = edits[int(self.random.choice(len(edits), p=EVOLUTION.edit_shares))]
        return next((found for _ in range(DRAWS) if (found := draw())), None)

    def _insert(self, steps: Steps, values: Mapping[str, int], name: str) -> StepEdit | None:
        """A step of a random class at the end of those of its class and of the earlier ones."""
        kind = self._pick(_INSERTED)
        at = self._pick(_list_ends(steps, _PHASES[kind]))
        family = self._pick_family(steps[:at], values, kind)
        return None if family is None else _place(steps, at, at, family, name, "insert")

    def _exchange(self, steps: Steps, values: Mapping[str, int], name: str) -> StepEdit | None:
        """Another step of the same class in the place of one."""
        at = int(self.random.integers(len(steps)))
        family = self._pick_family(steps[:at], values, type(steps[at]))
        return None if family is None else _place(steps, at, at + 1, family, name, "exchange")

    def _delete(self, steps: Steps) -> StepEdit | None:
        at = int(self.random.integers(len(steps)))
        return StepEdit((*steps[:at], *steps[at + 1 :]), (), f"delete {_describe(steps[at])}", {})

    def _move(self, steps: Steps) -> StepEdit | None:
        """A step to another place among those of its class and the classes beside it."""
        at = int(self.random.integers(len(steps)))
        rest, phase = (*steps[:at], *steps[at + 1 :]), _get_phase(steps[at])
        near = [i for i, x in enumerate(rest) if abs(_get_phase(x) - phase) <= 1 and i != at]
        if not near:
            return None
        to = self._pick(near)
        return StepEdit((*rest[:to], steps[at], *rest[to:]), (steps[at],), f"move {_describe(steps[at])}", {})

    def _cross(self, steps: Steps, father: Steps) -> StepEdit | None:
        """The steps of the father on one tensor or axis, in place of the own ones."""
        subjects = dict.fromkeys(s for step in (*steps, *father) if (s := find_subject(step)))
        subject = self._pick(list(subjects))
        new = [step for step in father if find_subject(step) == subject]
        if new == [step for step in steps if find_subject(step) == subject]:
            return None
        child = [step for step in steps if find_subject(step) != subject]
        for step in new:
            at = _list_ends(child, _get_phase(step))[0]
            child.insert(at, step)
        return StepEdit(tuple(child), tuple(new), f"cross {subject}", {})

    def _pick_family(self, before: Steps, values: Mapping[str, int], kind: type[Step]) -> Family | None:
        """A random family of a class of step, from the menu of the Program after `before`."""
        program = make_initial_program(self.op)
        for step in before:
            program = step.fill_holes(values).apply(program)
        found = [f for f in list_families(program) if isinstance(f.steps[-1], kind) and _is_useful(f)]
        return self._pick(found) if found else None

    def _pick(self, options: Sequence[OptionT]) -> OptionT:
        return options[int(self.random.integers(len(options)))]


def _is_useful(family: Family) -> bool:
    """Whether a family may gain: blocks and threads along y and z do what those along x do."""
    step = family.steps[-1]
    return not isinstance(step, Bind) or step.level in ("block.x", "thread.x", "vthread")


def find_subject(step: Step) -> str:
    """The tensor or axis that a step is about; "" for the order of loops."""
    for name in ("source", "tensor", "what", "loop", "axis", "outer"):
        value = getattr(step, name, None)
        if value is not None:
            return str(value).partition(".")[0]
    return ""


def _get_phase(step: Step) -> int:
    return _PHASES.get(type(step), len(_ORDER))


def _list_ends(steps: Sequence[Step], phase: int) -> list[int]:
    """The places in a list where steps of a phase, or of an earlier one, end."""
    phases = [-1, *map(_get_phase, steps), len(_ORDER)]
    return [at for at in range(len(steps) + 1) if phases[at] <= phase < phases[at + 1]]


def _place(steps: Steps, first: int, last: int, family: Family, name: str, verb: str) -> StepEdit:
    """The list with the steps of a family in place of those from `first` to before `last`."""
    holes = {hole: Hole(f"{name}.{hole}") for hole in family.numbers}
    new = tuple(step.fill_holes(holes) if holes else step for step in family.steps)
    numbers = {holes[hole].name: column for hole, column in family.numbers.items()}
    text = f"{verb} {_describe(new[-1])}"
    return StepEdit((*steps[:first], *new, *steps[last:]), new, text, numbers)


def _describe(step: Step) -> str:
    """A step in a few words: `bind k.1 thread.x`."""
    names = [x for value in vars(step).values() for x in (value if isinstance(value, tuple) else (value,))]
    return " ".join([step.kind, *(x for x in names if isinstance(x, str) and x)])


def make_decisions(name: str, edit: StepEdit, program: Program) -> tuple[Decision, ...]:
    """The decision of the new numbers of an edit, for the Program that its steps make; () without numbers."""
    if not edit.numbers:
        return ()
    table = sort_rows(np.unique(np.stack(list(edit.numbers.values()), axis=1), axis=0))
    step = next(step for step in edit.needed if step.list_holes())
    loops = {loop.name: loop for nest in program.nests for loop in nest.loops}
    if isinstance(step, Split):
        pieces = [loops.get(f"{step.loop}.{number}") for number in range(1, len(step.factors) + 1)]
        return (Decision(name, tuple(edit.numbers), table, tuple(map(find_kind, pieces))),)
    uses = dict.fromkeys(name_use(step, field, program) for field, _ in step.list_holes())
    return (Decision(name, tuple(edit.numbers), table, uses=tuple(uses)),)
