"""The step that cuts a reduction into two launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ekc.ir.operator import Axis
from ekc.ir.partial import split_reduction
from ekc.ir.program import Program, make_initial_program
from ekc.ir.refusal import make_schedule_error
from ekc.ir.steps.base import Step

MAX_SEARCHED_PARTS = 2**16
"""As far as a nearest divisor is looked for."""


@dataclass(frozen=True)
class RFactor(Step):
    """Reduce equal parts of an axis each by itself, then what came of them: two launches.

    `rfactor("k", 4)`::

        for i                      ->   for k_part in 4
          for j                           for i
            for k in 64                     for j
              C[i, j] += A[i, k] * ...        for k in 16
                                                C_parts[k_part, i, j] += A[i, k_part*16 + k] * ...
                                        for i_
                                          for j_
                                            for k_part_ in 4
                                              C[i_, j_] += C_parts[k_part_, i_, j_]

    The parts lie in a tensor of the accumulator's type in the workspace; their axis can be spread over
    blocks, so that few outputs of long sums fill a GPU. It comes before all other steps on the loops of the
    compute, and the loops of both computes are scheduled after it. An epilogue stays behind the second.
    Called rfactor in Halide and TVM (where the parts are a loop), split-K in libraries of matrix products.
    Refuses: an unknown axis, one that is not reduced, a nest with steps taken, parts that do not divide.
    """

    kind: ClassVar[str] = "rfactor"
    axis: str
    parts: int

    def apply(self, program: Program) -> Program:
        """See the class."""
        nest = program.find_nest(self.axis, self.kind)
        if not nest.is_unscheduled or all(c is not nest.compute for c in program.op.computes):
            raise self._make_error(
                f"the loops of {nest.output.name} to be as they were", "a step taken on them", "rfactor first"
            )
        axis = nest.compute.find_axis(self.axis)
        if not axis.is_reduction:
            sums = [a.name for a in nest.compute.reduction_axes]
            nearest = f'rfactor("{sums[0]}", ...)' if sums else "leave it out"
            raise self._make_error(
                "a reduction axis", f"{axis.name}, which {nest.output.name} is indexed by", nearest
            )
        self._check_parts(axis)
        op = split_reduction(program.op, nest.compute, self.axis, self.parts)
        at = next(n for n, c in enumerate(program.op.computes) if c is nest.compute)
        both = make_initial_program(op).nests[at : at + 2]
        nests = (new for old in program.nests for new in (both if old is nest else (old,)))
        return Program(op, tuple(nests), program.checks)

    def _check_parts(self, axis: Axis) -> None:
        if 1 < self.parts < axis.extent and axis.extent % self.parts == 0:
            return
        legal = [n for n in range(2, min(axis.extent, MAX_SEARCHED_PARTS)) if axis.extent % n == 0]
        near = str(min(legal, key=lambda n: abs(n - self.parts))) if legal else "leave it out"
        raise self._make_error(
            f"{self.parts} parts of {axis.name}", f"the divisors of {axis.extent} between 1 and that", near
        )

    def _make_error(self, need: str, limit: str, nearest: str) -> Exception:
        return make_schedule_error(self.kind, need, limit, nearest)
