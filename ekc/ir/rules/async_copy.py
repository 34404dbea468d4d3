"""What an asynchronous copy can move: 4, 8 or 16 bytes at once, as they lie, on targets that have it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ekc.ir.async_copy import ASYNC_COPIES_BY_BYTES, MIN_CP_ASYNC_ARCH
from ekc.ir.limits import Limits
from ekc.ir.nodes import LaunchTree, StageNode, walk_nodes
from ekc.ir.refusal import Check

REGISTER_COPY_HINT = 'pipeline(..., copy="register")'


def check_async_copies(kernel: LaunchTree, limits: Limits) -> Iterator[Check]:
    """Every asynchronous copy of a launch, held against the instructions there are."""
    for node in walk_nodes(kernel.body):
        if isinstance(node, StageNode) and node.is_async:
            rule = f"async copy of {node.staging.name}"
            if not limits.async_copies:
                limit = f"targets from sm_{MIN_CP_ASYNC_ARCH} on"
                yield Check(rule, False, "cp.async", limit, REGISTER_COPY_HINT)
            yield from _check_copy_widths(node, rule)


def _check_copy_widths(node: StageNode, rule: str) -> Iterator[Check]:
    """Neighbours that stay neighbours move together; into another order, each element goes alone."""
    vector, each = np.asanyarray(node.staging.vector), node.buffer.dtype.bytes
    together = node.buffer.fastest_segment == node.vector_segment
    if not together:
        limit, nearest = (
            "1, the order being another",
            "1" if each in ASYNC_COPIES_BY_BYTES else REGISTER_COPY_HINT,
        )
        yield Check(rule, vector == 1, node.staging.vector, limit, nearest, "elements at once")
    size = vector * each
    moved = (size == 4) | (size == 8) | (size == 16)
    nearest = f"vector={max(1, 4 // each)}" if together else REGISTER_COPY_HINT
    yield Check(rule, moved, node.staging.vector * each, "4, 8 or 16", nearest, "bytes at once")
