"""What asynchronous copies can bring, whatever the numbers turn out to be."""

from __future__ import annotations

from ekc.ir import expr as ex
from ekc.ir.async_copy import COPIES
from ekc.ir.operator import Compute, Operator

DEPTHS = (2, 3, 4, 6)
"""Copies of a tile that an asynchronous pipeline may keep."""


def grain(op: Operator, tensor: str) -> int:
    """Elements that the least copy moves."""
    return max(1, min(COPIES) // op.tensors[tensor].dtype.bytes)


def movable(op: Operator, load: ex.Load, order: tuple[int, ...]) -> bool:
    """Whether a copy can move the tensor into this order. Elements of 4 bytes always; narrower ones side by
    side, along an axis whose tiles keep them together."""
    least = grain(op, load.tensor)
    together = isinstance(load.index[-1], ex.Var) and op.tensors[load.tensor].shape[-1] % least == 0
    return least == 1 or (together and not order)


def grains(op: Operator, compute: Compute) -> dict[str, int]:
    """By axis: what its tiles must be a multiple of, so that the least copy of each tensor stays whole."""
    found: dict[str, int] = {}
    for load in ex.loads(compute.body):
        axis = load.index[-1]
        if isinstance(axis, ex.Var):
            found[axis.name] = max(found.get(axis.name, 1), grain(op, load.tensor))
    return found
