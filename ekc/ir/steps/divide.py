"""The step that cuts an axis where the quotients of it turn over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ekc.ir.linear import AffineForm, ceil_div
from ekc.ir.program import Nest, Program
from ekc.ir.quotients import find_quotient_period, simplify_quotients
from ekc.ir.refusal import make_schedule_error
from ekc.ir.steps.base import Step
from ekc.ir.steps.loops import check_loop_unmodified, check_names_free


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
        nest = program.find_nest(self.axis, self.kind)
        loop = nest.find_loop(self.axis)
        check_loop_unmodified(self.kind, nest, loop)
        self._check_axis(nest)
        self._check_axes_uncut(nest)
        self._check_divisor(nest)
        names = f"{loop.name}.0", f"{loop.name}.1"
        check_names_free(self.kind, program, [*names])
        # Axes of their own: a read need not go on from one to the other, as from piece to piece of a split.
        parts = (
            replace(loop, name=names[0], axis=names[0], extent=ceil_div(loop.extent, self.by)),
            replace(loop, name=names[1], axis=names[1], extent=self.by),
        )
        cut = nest.replace_loops(
            (loop.name,), parts, {loop.name: AffineForm(((names[0], self.by), (names[1], 1)))}
        )
        divided = nest.divided_axes | {self.axis}
        quotients = simplify_quotients(nest.compute, divided, cut.axis_forms, cut.extents)
        return program.replace_nest(nest, replace(cut, divided_axes=divided, quotient_forms=quotients))

    def _check_axis(self, nest: Nest) -> None:
        if self.axis not in nest.axis_forms:
            need = f"{self.axis} to be an axis of {nest.output.name}"
            raise make_schedule_error(
                self.kind, need, "a piece of one", f'split("{self.axis}", ({self.by},))'
            )

    def _check_axes_uncut(self, nest: Nest) -> None:
        """Numbers that a population has a vector of would have as many answers."""
        for axis, form in nest.axis_forms.items():
            whole = (f"{axis}.0", f"{axis}.1") if axis in nest.divided_axes else (axis,)
            if tuple(atom for atom, _ in form.terms) != whole:
                raise make_schedule_error(
                    self.kind, f"the axes of {nest.output.name} whole", f"{axis} is cut", "divide first"
                )

    def _check_divisor(self, nest: Nest) -> None:
        extent, turns = (
            nest.compute.find_axis(self.axis).extent,
            find_quotient_period(nest.compute, self.axis),
        )
        if turns == 1:
            raise make_schedule_error(
                self.kind,
                f"a quotient or remainder of {self.axis}",
                f"{nest.compute.output.name} reads none",
                f'split("{self.axis}", ({self.by},))',
            )
        if self.by < 1 or self.by % turns or self.by >= extent:
            near = max(1, min(round(self.by / turns), ceil_div(extent, turns) - 1)) * turns
            raise make_schedule_error(
                self.kind,
                f"{self.axis} by {self.by}",
                f"multiples of {turns} below {extent}",
                str(near) if near < extent else "leave it out",
            )
