"""Which reduction tails need a condition: those where some factor of the body would not be 0 beyond them."""

from __future__ import annotations

from collections.abc import Mapping

from ekc.ir import expr as ex
from ekc.ir.access import BoundsGuard, find_guards
from ekc.ir.operator import Axis, Compute, TensorSpec
from ekc.ir.program import Nest


def find_reduction_guards(nest: Nest, tensors: Mapping[str, TensorSpec]) -> tuple[BoundsGuard, ...]:
    """Conditions for reduction tails. A product of reads that are all 0 beyond the tail needs none."""
    guards: list[BoundsGuard] = []
    for axis in nest.compute.reduction_axes:
        if not is_zero_beyond_axis(nest.compute, axis, tensors):
            guards += find_guards((nest.axis_forms[axis.name],), (axis.extent,), nest.extents)
    return tuple(guards)


def is_zero_beyond_axis(compute: Compute, axis: Axis, tensors: Mapping[str, TensorSpec]) -> bool:
    """Whether every factor is 0 beyond a reduced axis."""
    if axis.extent == 1:
        # A tile holds its one point once: beyond it nothing was read, and so nothing is 0.
        return False
    parts = ex.list_factors(compute.body)
    reads = [p for p in parts if isinstance(p, ex.Load)]
    others = any(not isinstance(p, (ex.Load, ex.Const)) for p in parts)
    if compute.combine != "sum" or not reads or others:
        return False
    return all(_ends_at_axis(axis, read, tensors[read.tensor]) for read in reads)


def _ends_at_axis(axis: Axis, read: ex.Load, spec: TensorSpec) -> bool:
    """Whether a dimension of a tensor is the axis itself, so that it is read as 0 beyond it."""
    pairs = zip(read.index, spec.shape, strict=True)
    return any(form == ex.Var(axis.name) and extent == axis.extent for form, extent in pairs)
