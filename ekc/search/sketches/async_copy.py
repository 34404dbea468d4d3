"""Legality of asynchronous copies (`cp.async`) into shared memory, for any tile size (rule 6)."""

from __future__ import annotations

from ekc.ir import expr as ex
from ekc.ir.hardware.cp_async import ASYNC_COPIES_BY_BYTES
from ekc.ir.operator import Compute, Operator
from ekc.search.sketches.divided_axes import find_contiguous_axis, match_digits


def find_copy_alignment(op: Operator, tensor: str) -> int:
    """Elements of a tensor that the narrowest asynchronous copy moves."""
    return max(1, min(ASYNC_COPIES_BY_BYTES) // op.tensors[tensor].dtype.bytes)


def can_copy_async(op: Operator, compute: Compute, load: ex.Load, order: tuple[int, ...]) -> bool:
    """Whether asynchronous copies can store a tensor in this dimension order. Elements of 4 bytes: any order.
    Narrower elements: only the tensor's own order, along an axis whose tiles hold whole copies."""
    alignment, last = find_copy_alignment(op, load.tensor), load.index[-1]
    digits = match_digits(compute, last)
    # A copy that begins in the middle of a row must be aligned too.
    extents = [op.tensors[load.tensor].shape[-1], *([compute.find_axis(digits[1]).extent] if digits else [])]
    contiguous = (digits or isinstance(last, ex.Var)) and all(e % alignment == 0 for e in extents)
    return alignment == 1 or bool(contiguous and not order)


def find_axis_alignments(op: Operator, compute: Compute) -> dict[str, int]:
    """Axis name -> elements that its tiles must be a multiple of, so that no tile cuts a copy in two."""
    found: dict[str, int] = {}
    for load in ex.find_loads(compute.body):
        axis = find_contiguous_axis(compute, load.index[-1])
        if axis is not None:
            found[axis] = max(found.get(axis, 1), find_copy_alignment(op, load.tensor))
    return found
