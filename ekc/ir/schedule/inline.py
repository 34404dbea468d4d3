"""The step that fuses a tensor between two computes into one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ekc.ir.compute import Compute
from ekc.ir.lowering.fusion import (
    find_out_of_bounds_read,
    fuse_epilogue,
    has_load,
    has_other_accumulator,
    inline_producer,
    is_clamped_on_store,
    is_elementwise,
)
from ekc.ir.program import Nest, Program
from ekc.ir.refusal import make_unknown_name_error
from ekc.ir.schedule.step import Step

_SEPARATE_LAUNCH_HINT = "leave it a launch of its own"


@dataclass(frozen=True)
class ComputeInline(Step):
    """Use the value of a tensor between two computes where it is computed, without storing it.

    `compute_inline("C")`, where C is a sum in registers, fuses its reader behind the sum::

        launch 1: write C.acc -> C
        launch 2: D[p, q] = max(C[p, q] + bias[q], 0)
          ->
        launch 1: write max(C.acc + bias[j], 0) -> D

    `compute_inline("T")`, where T is a compute without a sum, writes it into its readers::

        launch 1: T[p, q] = max(X[p, q], 0)
        launch 2: C[i, j] += T[i, k] * B[k, j]
          ->
        launch 1: C[i, j] += max(X[i, k], 0) * B[k, j]

    The tensor decides which form applies. Without a sum and with unchanged loops it is written into all its
    readers, and computed at each read. Otherwise it needs an accumulator, and its one reader must be
    elementwise, without a sum and with unchanged loops; the loops of the reader vanish. Values between the
    two are not rounded to the dtype of the tensor. Called compute_inline in Halide and TVM; the first form is
    TVM's reverse_compute_inline, named there after the reader. Refuses: a tensor that no compute writes, the
    operator's result, a tensor that is copied or computed on the spot; in the first form a sum without
    accumulator, several readers, a reader of other elements or with changed loops; in the second form a read
    outside the tensor, which gives 0, where the body would not; in both forms a tensor that storing clamps
    (int32 stored as int8), and a body that its reader would compute in another type.
    """

    kind: ClassVar[str] = "compute_inline"
    tensor: str

    def apply(self, program: Program) -> Program:
        """See the class."""
        producers = {n.output.name: n for n in program.nests[:-1]}
        if self.tensor not in producers:
            raise make_unknown_name_error(
                self.kind,
                "tensor between computes",
                self.tensor,
                producers,
                plural="tensors between computes",
            )
        self._check_not_copied(program)
        nest = producers[self.tensor]
        if is_clamped_on_store(nest.epilogue or nest.compute):
            raise self.make_error(
                need=f"{self.tensor} as {nest.output.dtype}",
                problem=f"only storing {self.tensor} clamps it to {nest.output.dtype}",
                remedy=_SEPARATE_LAUNCH_HINT,
            )
        if nest.is_unscheduled and not nest.compute.reduction_axes:
            return self._inline_into_readers(program, nest)
        return self._fuse_into_producer(program, nest)

    def _check_not_copied(self, program: Program) -> None:
        for nest in program.nests:
            for s in nest.stagings:
                if s.tensor == self.tensor or (s.producer and has_load(s.producer, self.tensor)):
                    raise self.make_error(
                        need=f"{self.tensor} read from memory",
                        problem=f"{s.name} is made from {self.tensor}",
                        remedy="compute_inline first",
                    )

    def _inline_into_readers(self, program: Program, producer: Nest) -> Program:
        compute, tensors = producer.compute, program.op.tensors
        nests = []
        for nest in program.nests:
            for reader in filter(None, (nest.compute, nest.epilogue)):
                if has_load(reader, self.tensor):
                    self._check_same_accumulator(compute, reader)
                stray = find_out_of_bounds_read(reader, compute, tensors)
                if stray is not None:
                    raise self.make_error(
                        need=f"0 for {stray} outside {self.tensor}",
                        problem=f"{stray} outside {self.tensor} is 0, and {compute.body} is not",
                        remedy=f'use compute_at("{self.tensor}", ...)',
                    )
            last = nest.epilogue and inline_producer(nest.epilogue, compute)
            nests.append(replace(nest, compute=inline_producer(nest.compute, compute), epilogue=last))
        left = (n for n, old in zip(nests, program.nests, strict=True) if old is not producer)
        return replace(program, nests=tuple(left))

    def _fuse_into_producer(self, program: Program, producer: Nest) -> Program:
        reader, compute = self._find_reader(program)
        spec = producer.output
        if not is_elementwise(compute, spec):
            raise self.make_error(
                need=f"{spec.name} read at its own element",
                problem=f"{compute} reads other elements of {spec.name}",
                remedy=_SEPARATE_LAUNCH_HINT,
            )
        if producer.epilogue:
            self._check_same_accumulator(producer.epilogue, compute)
        if not reader.is_unscheduled:
            raise self.make_error(
                need=f"unscheduled {compute.output.name}",
                problem=f"the loops of {compute.output.name} were changed",
                remedy="compute_inline first",
            )
        if producer.is_atomic:
            raise self.make_error(
                need=f"{spec.name} whole in one block",
                problem=f"blocks add their parts of {spec.name} by atomics",
                remedy=f'{_SEPARATE_LAUNCH_HINT}, or leave atomic("{producer.compute.output.name}") out',
            )
        if not producer.has_accumulator:
            raise self.make_error(
                need=f"{spec.name} held in registers",
                problem=f"{spec.name} has no accumulator",
                remedy=f'call cache_write("{producer.compute.output.name}") first',
            )
        fused = replace(producer, epilogue=fuse_epilogue(producer, compute))
        # In the place of the reader: everything else that it reads is computed by then.
        nests = (fused if n is reader else n for n in program.nests if n is not producer)
        return replace(program, nests=tuple(nests))

    def _check_same_accumulator(self, producer: Compute, reader: Compute) -> None:
        if has_other_accumulator(producer, reader):
            raise self.make_error(
                need=f"{self.tensor} computed in {reader.acc_dtype}",
                problem=f"{self.tensor} is summed in {producer.acc_dtype}, its reader in {reader.acc_dtype}",
                remedy=_SEPARATE_LAUNCH_HINT,
            )

    def _find_reader(self, program: Program) -> tuple[Nest, Compute]:
        readers = list(self._iterate_readers(program))
        if len(readers) != 1:
            raise self.make_error(
                need=f"{self.tensor} read by one compute",
                problem=f"{len(readers) or 'no'} computes read {self.tensor}",
                remedy=_SEPARATE_LAUNCH_HINT,
            )
        return readers[0]

    def _iterate_readers(self, program: Program) -> Iterator[tuple[Nest, Compute]]:
        for nest in program.nests:
            for compute in filter(None, (nest.compute, nest.epilogue)):
                if has_load(compute, self.tensor):
                    yield nest, compute
