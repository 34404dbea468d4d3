"""The step that cuts an axis where the quotients of it turn over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ekc.ir.linear import Linear, ceil_div
from ekc.ir.program import Nest, Program
from ekc.ir.quotients import told_apart, turns_at
from ekc.ir.refusal import refuse
from ekc.ir.steps.base import Step
from ekc.ir.steps.loops import free, untouched


@dataclass(frozen=True)
class Divide(Step):
    """Cut an axis where what is read divides it, so that a tile of it has a box of what it reads.

    `divide("o", 16)`::

        for o in 32                         ->   for o.0 in 2
          for c in 128                             for o.1 in 16
            Y[o] += X[o // 16 * 128 + c] * ...       for c in 128
                                                       Y[o.0*16 + o.1] += X[o.0*128 + c] * ...

    A `split` into the same two loops leaves the quotient as it is: what a tile needs must follow from the
    steps, whatever their factors are. Groups of channels and the phases of a transposed convolution are told
    apart like this. `by` is a multiple of what the axis is divided by; where it does not divide the extent,
    a guard is added where the tensor ends. Exo: divide_loop and simplify; TVM simplifies after each split.
    Refuses: an unknown loop, one that is bound, unrolled, holds a staging or is a piece of an axis, an axis
    that nothing read divides, a number that is no multiple of its divisors or not below its extent, a nest
    with other axes cut before, names that are taken.
    """

    kind: ClassVar[str] = "divide"
    axis: str
    by: int

    def apply(self, program: Program) -> Program:
        """See the class."""
        nest = program.nest_of(self.axis, self.kind)
        loop = nest.loop(self.axis)
        untouched(self.kind, nest, loop)
        self._is_an_axis(nest)
        self._whole(nest)
        self._fits(nest)
        names = f"{loop.name}.0", f"{loop.name}.1"
        free(self.kind, program, [*names])
        # Axes of their own: a read need not go on from one to the other, as from piece to piece of a split.
        parts = (
            replace(loop, name=names[0], axis=names[0], extent=ceil_div(loop.extent, self.by)),
            replace(loop, name=names[1], axis=names[1], extent=self.by),
        )
        cut = nest.recut((loop.name,), parts, {loop.name: Linear(((names[0], self.by), (names[1], 1)))})
        divided = nest.divided | {self.axis}
        quotients = told_apart(nest.compute, divided, cut.index, cut.extents)
        return program.with_nest(nest, replace(cut, divided=divided, quotients=quotients))

    def _is_an_axis(self, nest: Nest) -> None:
        if self.axis not in nest.index:
            need = f"{self.axis} to be an axis of {nest.output.name}"
            raise refuse(self.kind, need, "a piece of one", f'split("{self.axis}", ({self.by},))')

    def _whole(self, nest: Nest) -> None:
        """Numbers that a population has a vector of would have as many answers."""
        for axis, form in nest.index.items():
            whole = (f"{axis}.0", f"{axis}.1") if axis in nest.divided else (axis,)
            if tuple(atom for atom, _ in form.terms) != whole:
                raise refuse(
                    self.kind, f"the axes of {nest.output.name} whole", f"{axis} is cut", "divide first"
                )

    def _fits(self, nest: Nest) -> None:
        extent, turns = nest.compute.axis(self.axis).extent, turns_at(nest.compute, self.axis)
        if turns == 1:
            raise refuse(
                self.kind,
                f"a quotient or remainder of {self.axis}",
                f"{nest.compute.output.name} reads none",
                f'split("{self.axis}", ({self.by},))',
            )
        if self.by < 1 or self.by % turns or self.by >= extent:
            near = max(1, min(round(self.by / turns), ceil_div(extent, turns) - 1)) * turns
            raise refuse(
                self.kind,
                f"{self.axis} by {self.by}",
                f"multiples of {turns} below {extent}",
                str(near) if near < extent else "leave it out",
            )
