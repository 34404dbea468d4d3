"""What an asynchronous copy can move: 4, 8 or 16 bytes at once, as they lie, on targets that have it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ekc.ir.async_copy import COPIES, LEAST_ARCH
from ekc.ir.limits import Limits
from ekc.ir.nodes import Kernel, StageNode, walk
from ekc.ir.refusal import Check

THROUGH_REGISTERS = 'pipeline(..., copy="register")'


def copies_fly(kernel: Kernel, limits: Limits) -> Iterator[Check]:
    """Every asynchronous copy of a launch, held against the instructions there are."""
    for node in walk(kernel.body):
        if isinstance(node, StageNode) and node.asynchronous:
            rule = f"async copy of {node.staging.name}"
            if not limits.async_copies:
                limit = f"targets from sm_{LEAST_ARCH} on"
                yield Check(rule, False, "cp.async", limit, THROUGH_REGISTERS)
            yield from _widths(node, rule)


def _widths(node: StageNode, rule: str) -> Iterator[Check]:
    """Neighbours that stay neighbours move together; into another order, each element goes alone."""
    vector, each = np.asanyarray(node.staging.vector), node.buffer.dtype.bytes
    together = node.buffer.fastest == node.vector_segment
    if not together:
        limit, nearest = "1, the order being another", "1" if each in COPIES else THROUGH_REGISTERS
        yield Check(rule, vector == 1, node.staging.vector, limit, nearest, "elements at once")
    size = vector * each
    moved = (size == 4) | (size == 8) | (size == 16)
    nearest = f"vector={max(1, 4 // each)}" if together else THROUGH_REGISTERS
    yield Check(rule, moved, node.staging.vector * each, "4, 8 or 16", nearest, "bytes at once")
