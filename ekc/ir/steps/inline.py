"""The step that keeps a tensor between two computes out of memory."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ekc.ir.inline import behind, clamped, elementwise, otherwise, reads, stray_read, substituted
from ekc.ir.operator import Compute
from ekc.ir.program import Nest, Program
from ekc.ir.refusal import refuse
from ekc.ir.steps.base import Step

_ALONE = "leave it a launch of its own"


@dataclass(frozen=True)
class ComputeInline(Step):
    """Let a tensor between two computes never be stored: its value is used where it is made.

    `compute_inline("C")`, where C is a sum held in registers, puts its reader behind the sum::

        launch 1: write C.acc -> C
        launch 2: D[p, q] = max(C[p, q] + bias[q], 0)
          ->
        launch 1: write max(C.acc + bias[j], 0) -> D

    `compute_inline("T")`, where T is a plain compute without a sum, puts it into its readers::

        launch 1: T[p, q] = max(X[p, q], 0)
        launch 2: C[i, j] += T[i, k] * B[k, j]
          ->
        launch 1: C[i, j] += max(X[i, k], 0) * B[k, j]

    Which of the two follows from T. Without a sum and with no step taken on its loops, it is written into
    all its readers, and worked out as often as they read it. Otherwise it must be held in registers, and
    its one reader reads it at its own element, sums nothing, and has no step taken; the reader's loops go.
    Values between the two are not rounded to the dtype of T. Called compute_inline in Halide and TVM; the
    first form is TVM's reverse_compute_inline, named there after the reader.
    Refuses: a tensor that is no compute's, the operator's result, a tensor that is copied or computed on
    the spot; in the first form a sum not held, several readers, a reader of other elements or with steps
    taken; in the second a read outside T, which gives 0, where the body would not;
    in both a tensor whose storing clamps it (int32 kept as int8), and a body that its reader would work
    out in another type.
    """

    kind: ClassVar[str] = "compute_inline"
    tensor: str

    def apply(self, program: Program) -> Program:
        """See the class."""
        made = {n.output.name: n for n in program.nests[:-1]}
        if self.tensor not in made:
            near = difflib.get_close_matches(self.tensor, made, n=1, cutoff=0.0)
            limit = (
                f"the tensors between computes {', '.join(made)}" if made else "no tensor between computes"
            )
            raise self._refused(repr(self.tensor), limit, repr(near[0]) if near else "leave it out")
        self._not_copied(program)
        nest = made[self.tensor]
        if clamped(nest.epilogue or nest.compute):
            raise self._refused(
                f"{self.tensor} as {nest.output.dtype}", "only storing it cuts it off at its limits", _ALONE
            )
        if nest.is_plain and not nest.compute.reduction:
            return self._into_readers(program, nest)
        return self._behind(program, nest)

    def _not_copied(self, program: Program) -> None:
        for nest in program.nests:
            for s in nest.stagings:
                if s.tensor == self.tensor or (s.produced_by and reads(s.produced_by, self.tensor)):
                    raise self._refused(
                        f"{self.tensor} read where it lies", f"{s.name} is made of it", "compute_inline first"
                    )

    def _into_readers(self, program: Program, producer: Nest) -> Program:
        compute, tensors = producer.compute, program.op.tensors
        nests = []
        for nest in program.nests:
            for reader in filter(None, (nest.compute, nest.epilogue)):
                if reads(reader, self.tensor):
                    self._same_arithmetic(compute, reader)
                stray = stray_read(reader, compute, tensors)
                if stray is not None:
                    raise self._refused(
                        f"0 for {stray} outside {self.tensor}",
                        f"{compute.body}, which is not 0 there",
                        f'compute_at("{self.tensor}", ...)',
                    )
            last = nest.epilogue and substituted(nest.epilogue, compute)
            nests.append(replace(nest, compute=substituted(nest.compute, compute), epilogue=last))
        return replace(
            program,
            nests=tuple(n for n, old in zip(nests, program.nests, strict=True) if old is not producer),
        )

    def _behind(self, program: Program, producer: Nest) -> Program:
        reader, compute = self._reader(program)
        spec = producer.output
        if not elementwise(compute, spec):
            raise self._refused(
                f"{spec.name} read at its own element", f"{compute} is no such reader", _ALONE
            )
        if producer.epilogue:
            self._same_arithmetic(producer.epilogue, compute)
        if not reader.is_plain:
            raise self._refused(
                f"{compute.output.name} not yet scheduled", "its loops were changed", "compute_inline first"
            )
        if producer.atomic:
            raise self._refused(
                f"{spec.name} whole in one block",
                "blocks add their parts of it by atomics",
                f'{_ALONE}, or leave atomic("{producer.compute.output.name}") out',
            )
        if not producer.accumulate:
            raise self._refused(
                f"{spec.name} held in registers",
                "no memory for it until it is complete",
                f'cache_write("{producer.compute.output.name}") first',
            )
        fused = replace(producer, epilogue=behind(producer, compute))
        # In the place of the reader: whatever else that reads has been made by then.
        nests = (fused if n is reader else n for n in program.nests if n is not producer)
        return replace(program, nests=tuple(nests))

    def _same_arithmetic(self, made: Compute, reader: Compute) -> None:
        if otherwise(made, reader):
            raise self._refused(
                f"{self.tensor} worked out in {made.acc_dtype}",
                f"{reader.output.name} is worked out in {reader.acc_dtype}",
                _ALONE,
            )

    def _reader(self, program: Program) -> tuple[Nest, Compute]:
        readers = list(self._readers(program))
        if len(readers) != 1:
            count = f"{len(readers)} read it" if readers else "none reads it"
            raise self._refused(f"{self.tensor} read by one compute", count, _ALONE)
        return readers[0]

    def _readers(self, program: Program) -> Iterator[tuple[Nest, Compute]]:
        for nest in program.nests:
            for compute in filter(None, (nest.compute, nest.epilogue)):
                if reads(compute, self.tensor):
                    yield nest, compute

    def _refused(self, need: str, limit: str, nearest: str) -> Exception:
        return refuse(self.kind, need, limit, nearest)
