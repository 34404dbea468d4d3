"""A reduction in two computes: partial results of equal parts, and what they come to together."""

from __future__ import annotations

from dataclasses import replace

from ekc.ir import expr as ex
from ekc.ir.fresh import make_unique_name
from ekc.ir.operator import Axis, Compute, Operator, TensorSpec


def split_reduction(op: Operator, compute: Compute, axis: str, parts: int) -> Operator:
    """The operator with one compute in place of two: `parts` of a reduction axis, which they divide, each
    reduced by itself into a tensor of the accumulator's type, and these reduced.

    C[i, j] = sum[k < 64] A[i, k] * B[k, j], in 4 parts of k, becomes
        C_parts[k_part, i, j] = sum[k < 16] A[i, k_part*16 + k] * B[k_part*16 + k, j]
        C[i_, j_] = sum[k_part_ < 4] C_parts[k_part_, i_, j_]
    """
    names = {*op.tensors, *(a.name for c in op.computes for a in c.axes)}
    part = Axis(make_unique_name(f"{axis}_part", names), parts)
    within = compute.find_axis(axis).extent // parts
    spec = TensorSpec(
        make_unique_name(f"{compute.output.name}_parts", names),
        (parts, *compute.output.shape),
        compute.acc_dtype,
    )
    whole = ex.Var(part.name) * within + ex.Var(axis)
    first = Compute(
        spec,
        (part, *(replace(a, extent=within) if a.name == axis else a for a in compute.axes)),
        ex.substitute(compute.body, {axis: whole}),
        compute.combine,
        compute.acc_dtype,
    )
    spatial = tuple(replace(a, name=make_unique_name(f"{a.name}_", names)) for a in compute.spatial_axes)
    last = Axis(make_unique_name(f"{part.name}_", names), parts, is_reduction=True)
    second = replace(
        compute,
        axes=(*spatial, last),
        body=ex.Load(spec.name, tuple(ex.Var(a.name) for a in (last, *spatial))),
    )
    computes = (both for c in op.computes for both in ((first, second) if c is compute else (c,)))
    return replace(op, computes=tuple(computes))
