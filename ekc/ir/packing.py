"""A tensor copied into another order of its dimensions, and everything that reads the copy instead."""

from __future__ import annotations

from dataclasses import replace

from ekc.ir import expr as ex
from ekc.ir.dtypes import parse_dtype
from ekc.ir.fresh import make_unique_name
from ekc.ir.inline import has_load
from ekc.ir.operator import Axis, Compute, Operator, TensorSpec


def pack_input(op: Operator, tensor: str, order: tuple[int, ...]) -> Operator:
    """The operator with one compute more, in front of the first that reads the tensor: a copy of it whose
    dimensions stand in `order`, slowest first.

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
