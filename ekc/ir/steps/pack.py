"""The step that brings a tensor into another order by a launch of its own."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import ClassVar

from ekc.ir import expr as ex
from ekc.ir.operator import TensorSpec
from ekc.ir.packing import pack_input
from ekc.ir.program import Nest, Program, make_initial_program
from ekc.ir.refusal import make_schedule_error
from ekc.ir.steps.base import Step


@dataclass(frozen=True)
class Pack(Step):
    """Copy an input into another order of its dimensions first, then read the copy: a launch more.

    `pack("A", (1, 0))`::

        for i                      ->   for A_1
          for j                           for A_0
            for k                           A_packed[A_1, A_0] = A[A_0, A_1]
              C[i, j] += A[i, k] * ...  for i
                                          for j
                                            for k
                                              C[i, j] += A_packed[k, i] * ...

    `order` names the dimensions of the input as the copy has them, slowest first. The copy lies in the
    workspace; each of its loops is named for the dimension it goes along. What is read often with neighbours
    far apart, as the channels of an image stored channels first, is then read side by side. It comes before
    all other steps on the loops that read the tensor. TVM says cache_read to global memory and
    transform_layout, libraries of matrix products say packing.
    Refuses: what is no input, an order that is none or no other, a nest with steps taken, tf32.
    """

    kind: ClassVar[str] = "pack"
    tensor: str
    order: tuple[int, ...]

    def apply(self, program: Program) -> Program:
        """See the class."""
        spec = self._find_input(program)
        if not spec.dtype.is_writable:
            raise self._make_error(
                f"a tensor of {spec.dtype} stored", f"{spec.dtype} is only read", "leave it out"
            )
        readers = [n for n in program.nests if self._is_read_by(n)]
        for nest in readers:
            if not nest.is_unscheduled or all(c is not nest.compute for c in program.op.computes):
                raise self._make_error(
                    f"the loops of {nest.output.name} to be as they were",
                    "a step taken on them",
                    "pack first",
                )
        self._check_order(spec)
        op = pack_input(program.op, self.tensor, self.order)
        new = make_initial_program(op).nests
        of = {n.output.name: n for n in new}
        copy = next(n for n in new if n.output.name not in program.op.tensors)
        nests = []
        for nest in program.nests:
            if nest is readers[0]:
                nests.append(copy)
            nests.append(of[nest.output.name] if nest in readers else nest)
        return Program(op, tuple(nests), program.checks)

    def _find_input(self, program: Program) -> TensorSpec:
        inputs = {t.name: t for t in program.op.inputs}
        if self.tensor not in inputs or not any(map(self._is_read_by, program.nests)):
            read = [t for t in inputs if any(t in _list_read_tensors(n) for n in program.nests)]
            near = difflib.get_close_matches(self.tensor, read, 1, 0.0)
            nearest = repr(near[0]) if near else "leave it out"
            known = ", ".join(read) or "none"
            raise self._make_error(f"an input called {self.tensor!r}", f"those read: {known}", nearest)
        return inputs[self.tensor]

    def _check_order(self, spec: TensorSpec) -> None:
        own = tuple(range(len(spec.shape)))
        if self.order == own or tuple(sorted(self.order)) != own:
            nearest = str((*own[:-2], *own[:-3:-1])) if len(own) > 1 else "leave it out"
            raise self._make_error(
                f"the dimensions of {spec.name} in the order {self.order}", f"another order of {own}", nearest
            )

    def _is_read_by(self, nest: Nest) -> bool:
        return self.tensor in _list_read_tensors(nest)

    def _make_error(self, need: str, limit: str, nearest: str) -> Exception:
        return make_schedule_error(self.kind, need, limit, nearest)


def _list_read_tensors(nest: Nest) -> set[str]:
    """What it reads, in whatever part of it."""
    computes = [nest.compute, nest.epilogue, *(s.producer for s in nest.stagings)]
    return {load.tensor for c in computes if c is not None for load in ex.find_loads(c.body)}
