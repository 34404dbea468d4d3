"""What asynchronous copies can bring, whatever the numbers turn out to be."""

from __future__ import annotations

from ekc.ir import expr as ex
from ekc.ir.async_copy import COPIES
from ekc.ir.operator import Compute, Operator
from ekc.search.space.digits import along, digits

DEPTHS = (2, 3, 4, 6)
"""Copies of a tile that an asynchronous pipeline may keep."""


def grain(op: Operator, tensor: str) -> int:
    """Elements that the least copy moves."""
    return max(1, min(COPIES) // op.tensors[tensor].dtype.bytes)


def movable(op: Operator, compute: Compute, load: ex.Load, order: tuple[int, ...]) -> bool:
    """Whether a copy can move the tensor into this order. Elements of 4 bytes always; narrower ones side by
    side, along an axis whose tiles keep them together."""
    least, last = grain(op, load.tensor), load.index[-1]
    begun = digits(compute, last)
    # What begins in the middle of a row must begin at a whole copy too.
    steps = [op.tensors[load.tensor].shape[-1], *([compute.axis(begun[1]).extent] if begun else [])]
    together = (begun or isinstance(last, ex.Var)) and all(step % least == 0 for step in steps)
    return least == 1 or bool(together and not order)


def grains(op: Operator, compute: Compute) -> dict[str, int]:
    """By axis: what its tiles must be a multiple of, so that the least copy of each tensor stays whole."""
    found: dict[str, int] = {}
    for load in ex.loads(compute.body):
        axis = along(compute, load.index[-1])
        if axis is not None:
            found[axis] = max(found.get(axis, 1), grain(op, load.tensor))
    return found
