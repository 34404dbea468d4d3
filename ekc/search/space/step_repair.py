"""Repair of an edited list of steps: names that an edit changed, the order of bound loops, loops left out.

An edit in the middle of a list changes what the steps behind it find: `split` makes pieces of a loop that
they name, `rfactor` another tensor, `bind` takes a loop that a copy sits in. `repair_steps` rewrites those
names, leaves out the steps that still refuse, and completes what no step binds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ekc.errors import EkcError
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.lowering.fusion import group_fusable_computes
from ekc.ir.operator import Operator
from ekc.ir.program import Nest, Program, make_initial_program
from ekc.ir.schedule import (
    Atomic,
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Fuse,
    Pack,
    Reorder,
    RFactor,
    Step,
)
from ekc.search.sketches.decisions import Decision
from ekc.search.sketches.multi_level_tiling import derive_minor_launch

_CACHING_STEPS = (CacheRead, CacheWrite, ComputeAt, ComputeInline, Atomic)
"""Steps that need the loops of their nest bound and in order."""


@dataclass(frozen=True, eq=False)
class RepairedSteps:
    """A list of steps that applies, and what it makes for the numbers that it was repaired with."""

    steps: tuple[Step, ...]
    program: Program
    decisions: tuple[Decision, ...]
    """Decisions of the launches that the repair added."""


def repair_steps(
    op: Operator,
    steps: Sequence[Step],
    values: Mapping[str, int],
    limits: LaunchLimits,
    needed: Sequence[Step] = (),
) -> RepairedSteps | None:
    """Make an edited list of steps apply.

    split("k", (<n>,))                   split("k", (<n>,))
    bind("k.1", "thread.x")      ->      bind("k.1", "thread.x")
    cache_read(.., at="k.1")             cache_read(.., at="k.0")
    unroll("k.1", <u>)

    values: hole -> the number that it is tried with. needed: steps without which the edit is none. None where
    one of these is left out, or a launch is left over that no rule schedules.
    """
    walk = _Walk(make_initial_program(op), values)
    for step in steps:
        if isinstance(step, _CACHING_STEPS):
            walk.order_bound_loops()
        fits = [new for new in walk.fit_names(step) if walk.apply(new)]
        if not fits and any(step is one for one in needed):
            return None
    walk.order_bound_loops()
    return _add_launches(walk, limits)


@dataclass
class _Walk:
    """The steps so far, and the Program that they make."""

    program: Program
    values: Mapping[str, int]
    steps: list[Step] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    """Tensor of the list before the edit -> the one that takes its place."""
    fused: dict[str, str] = field(default_factory=dict)
    """Loop that was fused with another -> the loop of both."""

    def apply(self, step: Step) -> bool:
        """Apply a step, with its numbers; whether it does not refuse."""
        before, loops = {t.name for t in self.program.op.tensors.values()}, set(self._list_loop_names())
        try:
            program = step.fill_holes(self.values).apply(self.program)
        except EkcError:
            return False
        self.steps.append(step)
        if isinstance(step, RFactor):
            nest = self.program.find_nest(step.axis, step.kind)
            self._note_renamed(nest.compute.output.name, program, before)
        elif isinstance(step, Pack):
            self._note_renamed(step.tensor, program, before)
        self.program = program
        if isinstance(step, Fuse):
            (both,) = set(self._list_loop_names()) - loops
            self.fused |= {step.outer: both, step.inner: both}
        return True

    def _note_renamed(self, tensor: str, program: Program, before: set[str]) -> None:
        self.renamed[tensor] = next(name for name in program.op.tensors if name not in before)

    def fit_names(self, step: Step) -> list[Step]:
        """The step with the names that the Program has; several where each piece of a loop needs its own."""
        if isinstance(step, Reorder):
            names = dict.fromkeys(piece for name in step.loops for piece in self._find_pieces(name))
            return [replace(step, loops=tuple(names))] if len(names) > 1 else []
        if isinstance(step, ComputeInline) and step.tensor in self.renamed:
            return []
        changes: dict[str, str | None] = {}
        for name, value in vars(step).items():
            if name in ("loop", "axis", "outer", "inner"):
                pieces = self._find_pieces(value)
                if isinstance(step, Bind):
                    return [replace(step, loop=piece) for piece in pieces]
                changes[name] = pieces[-1] if pieces else value
            elif name == "at" and value is not None:
                changes[name] = self._find_place(value)
            elif name in ("tensor", "source", "reader", "what") and not isinstance(step, Pack):
                changes[name] = self._find_tensor(value)
        return [replace(step, **changes)]

    def _list_loop_names(self) -> list[str]:
        return [loop.name for nest in self.program.nests for loop in nest.loops]

    def _find_pieces(self, name: str) -> list[str]:
        """The loop of that name or that it was fused into; else the pieces that it was cut into, or those of
        the loop it came from."""
        names = self._list_loop_names()
        while name not in names:
            if name in self.fused:
                name = self.fused[name]
                continue
            pieces = [x for x in names if x.startswith(f"{name}.")]
            if pieces or "." not in name:
                return pieces
            name = name.rpartition(".")[0]
        return [name]

    def _find_place(self, name: str) -> str | None:
        """The serial loop to copy in: the last piece of that loop, else of its axis, else the next around."""
        for nest in self.program.nests:
            pieces = [x for x in self._find_pieces(name) if x in nest.extents]
            if pieces:
                of_axis = self._find_pieces(name.partition(".")[0])
                serial = [x.name for x in nest.loops if x.is_serial and x.level != "vector"]
                around = [x for x in serial if nest.find_position(x) < nest.find_position(pieces[-1])]
                near = [x for own in (around[-1:], of_axis, pieces) for x in own if x in serial]
                return near[-1] if near else None
        return None

    def _find_tensor(self, name: str) -> str:
        """The tensor or copy that takes the place of this one; the tensor itself where its copy is gone."""
        root, _, scope = name.partition(".")
        root = self.renamed.get(root, root)
        copies = {s.name for nest in self.program.nests for s in nest.stagings}
        return f"{root}.{scope}" if f"{root}.{scope}" in copies else root

    def order_bound_loops(self) -> None:
        """Move bound loops outside of serial ones, and bind serial loops that are outside of all of them."""
        for number, nest in enumerate(self.program.nests):
            if nest.stagings or not any(x.is_block or x.is_thread for x in nest.loops):
                continue
            bound = [x.name for x in nest.loops if x.is_block or x.is_thread]
            first = nest.find_position(bound[0])
            for loop in nest.loops[:first]:
                if loop.level == "serial" and not loop.is_reduction:
                    self.apply(Bind(loop.name, "block.x"))
            self._move_outside(self.program.nests[number])

    def _move_outside(self, nest: Nest) -> None:
        order = sorted(nest.loops, key=lambda x: 0 if x.is_block else 1 if x.is_thread else 2)
        if [x.name for x in order] != [x.name for x in nest.loops]:
            self.apply(Reorder(tuple(x.name for x in order)))


def _add_launches(walk: _Walk, limits: LaunchLimits) -> RepairedSteps | None:
    """Schedule the launches that no step has touched, as the rules schedule a launch that is not the
    largest."""
    decisions: list[Decision] = []
    for chain in group_fusable_computes(walk.program.op):
        nests = {nest.compute.output.name: nest for nest in walk.program.nests}
        nest = nests.get(chain[0].output.name)
        if nest is None or not nest.is_unscheduled or len(nests) == 1:
            continue
        launch = derive_minor_launch(walk.program.op, chain, limits)
        values = {h: int(d.table[0, i]) for d in launch.decisions for i, h in enumerate(d.holes)}
        walk.values = {**values, **walk.values}
        if not all(walk.apply(step) for step in launch.steps):
            return None
        decisions += launch.decisions
    return RepairedSteps(tuple(walk.steps), walk.program, tuple(decisions))
