"""Steps that rewrite the graph of computes.

`rfactor` cuts a reduction into two computes: partial results of equal parts, and their reduction. `pack`
copies an input into another order of its dimensions, and lets the computes read the copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ekc.ir import expr as ex
from ekc.ir.compute import Axis, Compute, TensorSpec
from ekc.ir.dtypes import parse_dtype
from ekc.ir.lowering.fusion import has_load
from ekc.ir.operator import Operator
from ekc.ir.program import Nest, Program, make_initial_program
from ekc.ir.refusal import make_over_limit_error, make_unknown_name_error
from ekc.ir.schedule.step import Step
from ekc.ir.validate import make_unique_name


def split_reduction(op: Operator, compute: Compute, axis: str, parts: int) -> Operator:
    """The operator with two computes in place of one. The first reduces each of `parts` equal parts of an
    axis, into a tensor of the accumulator's type; the second reduces the parts.

    C[i, j] = sum[k < 64] A[i, k] * B[k, j], in 4 parts of k, becomes
        C_parts[k_part, i, j] = sum[k < 16] A[i, k_part*16 + k] * B[k_part*16 + k, j]
        C[i_, j_] = sum[k_part_ < 4] C_parts[k_part_, i_, j_]
    """
    names = {*op.tensors, *(a.name for c in op.computes for a in c.axes)}
    part = Axis(make_unique_name(f"{axis}_part", names), parts)
    within = compute.find_axis(axis).extent // parts
    name = make_unique_name(f"{compute.output.name}_parts", names)
    spec = TensorSpec(name, (parts, *compute.output.shape), compute.acc_dtype)
    index = ex.Var(part.name) * within + ex.Var(axis)
    axes = (part, *(replace(a, extent=within) if a.name == axis else a for a in compute.axes))
    first = replace(compute, output=spec, axes=axes, body=ex.substitute(compute.body, {axis: index}))
    spatial = tuple(replace(a, name=make_unique_name(f"{a.name}_", names)) for a in compute.spatial_axes)
    last = Axis(make_unique_name(f"{part.name}_", names), parts, is_reduction=True)
    sum_of_parts = ex.Load(spec.name, tuple(ex.Var(a.name) for a in (last, *spatial)))
    second = replace(compute, axes=(*spatial, last), body=sum_of_parts)
    computes = (both for c in op.computes for both in ((first, second) if c is compute else (c,)))
    return replace(op, computes=tuple(computes))


MAX_SEARCHED_PARTS = 2**16
"""Largest number of parts that is considered as the nearest legal choice."""


@dataclass(frozen=True)
class RFactor(Step):
    """Reduce equal parts of an axis in a first launch, and their results in a second.

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

    The partial results are a tensor of the accumulator's type in the workspace. Their axis can be bound to
    blocks, so that few outputs of long sums fill a GPU. The step comes before all other steps on the loops of
    the compute; the loops of both computes are scheduled after it. An epilogue stays behind the second.
    Called rfactor in Halide and TVM (where the parts are a loop), split-K in libraries of matrix products.
    Refuses: an unknown axis, an axis that is no reduction, changed loops, parts that do not divide.
    """

    kind: ClassVar[str] = "rfactor"
    axis: str
    parts: int

    def apply(self, program: Program) -> Program:
        """See the class."""
        nest = program.find_nest(self.axis, self.kind)
        if not nest.is_unscheduled or all(c is not nest.compute for c in program.op.computes):
            raise self.make_error(
                need=f"unchanged loops of {nest.output.name}",
                problem=f"the loops of {nest.output.name} were changed",
                remedy="rfactor first",
            )
        axis = nest.compute.find_axis(self.axis)
        if not axis.is_reduction:
            sums = [a.name for a in nest.compute.reduction_axes]
            raise self.make_error(
                need="a reduction axis",
                problem=f"{axis.name} is no reduction axis; {nest.output.name} is indexed by it",
                remedy=f'use rfactor("{sums[0]}", ...)' if sums else "leave it out",
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
        raise make_over_limit_error(
            self.kind,
            need=f"{self.parts} parts of {axis.name}",
            limit=f"must be a divisor of {axis.extent} between 1 and {axis.extent}",
            nearest=str(min(legal, key=lambda n: abs(n - self.parts))) if legal else "leave it out",
        )


def pack_input(op: Operator, tensor: str, order: tuple[int, ...]) -> Operator:
    """The operator with one compute more, before the first that reads the tensor: a copy whose dimensions
    have the given `order`, slowest first.

    C[i, j] = sum[k < 64] A[i, k] * B[k, j], B in the order (1, 0), becomes
        B_packed[B_1, B_0] = B[B_0, B_1]
        C[i, j] = sum[k < 64] A[i, k] * B_packed[j, k]
    """
    names = {*op.tensors, *(a.name for c in op.computes for a in c.axes)}
    spec = op.tensors[tensor]
    axes = tuple(Axis(make_unique_name(f"{tensor}_{d}", names), spec.shape[d]) for d in order)
    shape = tuple(a.extent for a in axes)
    copy = Compute(
        TensorSpec(make_unique_name(f"{tensor}_packed", names), shape, spec.dtype),
        axes,
        ex.Load(tensor, tuple(ex.Var(axes[order.index(d)].name) for d in range(len(order)))),
        "sum",
        parse_dtype(spec.dtype.default_accumulator),
    )

    def instead(load: ex.Load) -> ex.Load:
        if load.tensor != tensor:
            return load
        return ex.Load(copy.output.name, tuple(load.index[d] for d in order))

    computes: list[Compute] = []
    for compute in op.computes:
        if not has_load(compute, tensor):
            computes.append(compute)
            continue
        if all(c is not copy for c in computes):
            computes.append(copy)
        computes.append(replace(compute, body=ex.replace_loads(compute.body, instead)))
    return replace(op, computes=tuple(computes))


@dataclass(frozen=True)
class Pack(Step):
    """Copy an input into another order of its dimensions, in a launch of its own, and read the copy.

    `pack("A", (1, 0))`::

        for i                      ->   for A_1
          for j                           for A_0
            for k                           A_packed[A_1, A_0] = A[A_0, A_1]
              C[i, j] += A[i, k] * ...  for i
                                          for j
                                            for k
                                              C[i, j] += A_packed[k, i] * ...

    `order` gives the dimensions of the input in the order of the copy, slowest first. The copy is in the
    workspace; each of its loops is named after its dimension. It helps where neighbours of a reader are
    distant in memory, as channels of an image stored channels first. The step comes before all other steps on
    the loops that read the tensor. TVM: cache_read to global memory and transform_layout; libraries of matrix
    products: packing. Refuses: a tensor that is no input, an order that is no other permutation, changed
    loops, tf32.
    """

    kind: ClassVar[str] = "pack"
    tensor: str
    order: tuple[int, ...]

    def apply(self, program: Program) -> Program:
        """See the class."""
        spec = self._find_input(program)
        if not spec.dtype.is_writable:
            raise self.make_error(
                need=f"{spec.dtype} that can be stored",
                problem=f"{spec.dtype} can only be read",
                remedy="leave it out",
            )
        readers = [n for n in program.nests if self._is_read_by(n)]
        for nest in readers:
            if not nest.is_unscheduled or all(c is not nest.compute for c in program.op.computes):
                raise self.make_error(
                    need=f"unchanged loops of {nest.output.name}",
                    problem=f"the loops of {nest.output.name} were changed",
                    remedy="pack first",
                )
        self._check_order(spec)
        op = pack_input(program.op, self.tensor, self.order)
        new = make_initial_program(op).nests
        nest_by_output = {n.output.name: n for n in new}
        copy = next(n for n in new if n.output.name not in program.op.tensors)
        nests = []
        for nest in program.nests:
            if nest is readers[0]:
                nests.append(copy)
            nests.append(nest_by_output[nest.output.name] if nest in readers else nest)
        return Program(op, tuple(nests), program.checks)

    def _find_input(self, program: Program) -> TensorSpec:
        inputs = {t.name: t for t in program.op.inputs}
        if self.tensor not in inputs or not any(map(self._is_read_by, program.nests)):
            read = [t for t in inputs if any(t in _list_read_tensors(n) for n in program.nests)]
            raise make_unknown_name_error(self.kind, "input", self.tensor, read)
        return inputs[self.tensor]

    def _check_order(self, spec: TensorSpec) -> None:
        own = tuple(range(len(spec.shape)))
        if self.order == own or tuple(sorted(self.order)) != own:
            raise make_over_limit_error(
                self.kind,
                need=f"the dimensions of {spec.name} in the order {self.order}",
                limit=f"must be another order of {own}",
                nearest=str((*own[:-2], *own[:-3:-1])) if len(own) > 1 else "leave it out",
            )

    def _is_read_by(self, nest: Nest) -> bool:
        return self.tensor in _list_read_tensors(nest)


def _list_read_tensors(nest: Nest) -> set[str]:
    """Names of the tensors that any part of a nest reads."""
    behind = (nest.epilogue,) if nest.epilogue else ()
    return {load.tensor for c in (*nest.computes, *behind) for load in c.loads}
