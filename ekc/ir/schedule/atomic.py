"""The step that lets several blocks work on one sum."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ekc.ir.program import Nest, Program
from ekc.ir.refusal import make_schedule_error, make_unknown_name_error
from ekc.ir.schedule.step import Step


@dataclass(frozen=True)
class Atomic(Step):
    """Add the accumulator of a sum to memory by atomics, so that reduction loops may be bound to blocks.

    `atomic("C")`, and then `bind("k.0", "block.y")`::

        block.x i                ->   launch 1: C[at] = 0
          register C.acc = 0          launch 2: block.y k.0 in 4, block.x i
          for k.0 in 4                            register C.acc = 0
            for k.1 in 16                         for k.1 in 16
              C.acc += A[i, k] * ...                C.acc += A[i, k] * ...
          write C.acc -> C                        add C.acc -> C              atomic

    Unlike `rfactor` it needs no tensor of partial sums; a launch before clears the output. Blocks add in the
    order in which they end, so floating-point results differ from run to run by rounding; integers do not.
    The search does not use this step. Called atomic in Halide; split-K with atomics in libraries. Rules check
    that the sum has an accumulator (`cache_write`) and is added element by element. Refuses: a tensor that no
    compute writes, a tensor that is atomic already, a compute that is no sum, an output of another type than
    the sum (each part would be rounded), computes fused behind the sum.
    """

    kind: ClassVar[str] = "atomic"
    tensor: str

    def apply(self, program: Program) -> Program:
        """See the class."""
        nest = self._find_nest(program)
        if nest.is_atomic:
            raise make_schedule_error(
                self.kind,
                f"{self.tensor} named once",
                f"{self.tensor} is atomic already",
                "leave the second out",
            )
        if not nest.compute.reduction_axes:
            raise make_schedule_error(
                self.kind, f"a sum {self.tensor}", f"{self.tensor} sums nothing", "leave it out"
            )
        longest = max(nest.compute.reduction_axes, key=lambda a: a.extent)
        self._check_addable(nest, f'rfactor("{longest.name}", ...)')
        return program.replace_nest(nest, replace(nest, is_atomic=True))

    def _check_addable(self, nest: Nest, parts: str) -> None:
        """Refuse an output that is no plain sum of its parts; `parts` is the step that is suggested
        instead."""
        compute = nest.compute
        if compute.combine != "sum":
            problem = f"atomics add parts, and {self.tensor} is a {compute.combine}"
            raise make_schedule_error(self.kind, f"a sum {self.tensor}", problem, f"use {parts}")
        if nest.epilogue is not None:
            raise make_schedule_error(
                self.kind,
                f"{self.tensor} written as it is summed",
                f"{nest.output.name} is fused behind {self.tensor}, and no block knows which is the last",
                f'leave compute_inline("{self.tensor}") out, or {parts} first',
            )
        if compute.output.dtype is not compute.acc_dtype:
            raise make_schedule_error(
                self.kind,
                f"{self.tensor} as {compute.acc_dtype}, as it is summed",
                f"{self.tensor} is stored as {compute.output.dtype}, which would round each part",
                f'use out_dtype="{compute.acc_dtype}", or {parts}',
            )

    def _find_nest(self, program: Program) -> Nest:
        nests = {n.compute.output.name: n for n in program.nests}
        if self.tensor not in nests:
            raise make_unknown_name_error(self.kind, "output", self.tensor, nests)
        return nests[self.tensor]
