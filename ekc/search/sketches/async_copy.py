"""What asynchronous copies can bring, whatever the numbers turn out to be."""

from __future__ import annotations

from ekc.ir import expr as ex
from ekc.ir.compute import Compute
from ekc.ir.hardware.cp_async import ASYNC_COPIES_BY_BYTES
from ekc.ir.operator import Operator
from ekc.search.sketches.divided_axes import find_contiguous_axis, match_digits

PIPELINE_DEPTHS = (2, 3, 4, 6)
"""Copies of a tile that an asynchronous pipeline may keep."""


def find_copy_alignment(op: Operator, tensor: str) -> int:
    """Elements that the least copy moves."""
    return max(1, min(ASYNC_COPIES_BY_BYTES) // op.tensors[tensor].dtype.bytes)


def can_copy_async(op: Operator, compute: Compute, load: ex.Load, order: tuple[int, ...]) -> bool:
    """Whether a copy can move the tensor into this order. Elements of 4 bytes always; narrower ones side by
    side, along an axis whose tiles keep them together."""
    least, last = find_copy_alignment(op, load.tensor), load.index[-1]
    begun = match_digits(compute, last)
    # What begins in the middle of a row must begin at a whole copy too.
    steps = [op.tensors[load.tensor].shape[-1], *([compute.find_axis(begun[1]).extent] if begun else [])]
    together = (begun or isinstance(last, ex.Var)) and all(step % least == 0 for step in steps)
    return least == 1 or bool(together and not order)


def find_axis_alignments(op: Operator, compute: Compute) -> dict[str, int]:
    """By axis: what its tiles must be a multiple of, so that the least copy of each tensor stays whole."""
    found: dict[str, int] = {}
    for load in ex.find_loads(compute.body):
        axis = find_contiguous_axis(compute, load.index[-1])
        if axis is not None:
            found[axis] = max(found.get(axis, 1), find_copy_alignment(op, load.tensor))
    return found
