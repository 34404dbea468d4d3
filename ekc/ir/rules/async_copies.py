"""Rules of asynchronous copies (cp.async): 4, 8 or 16 bytes at once, in the order of memory, on targets that
have them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ekc.ir.hardware.cp_async import ASYNC_COPIES_BY_BYTES
from ekc.ir.hardware.target import FIRST_AMPERE_ARCH, Limits
from ekc.ir.lowering.nodes import LaunchTree, StageNode, walk_nodes
from ekc.ir.refusal import Check, fits, requires

REGISTER_COPY_HINT = 'use pipeline(..., copy="register")'


def check_async_copies(kernel: LaunchTree, limits: Limits) -> Iterator[Check]:
    """Every asynchronous copy of a launch needs an instruction that can do it."""
    for node in walk_nodes(kernel.body):
        if isinstance(node, StageNode) and node.is_async:
            rule = f"async copy of {node.staging.name}"
            if not limits.async_copies:
                problem = f"targets before {FIRST_AMPERE_ARCH} have no cp.async"
                yield requires(rule, False, "cp.async", problem, REGISTER_COPY_HINT)
            yield from _check_copy_widths(node, rule)


def _check_copy_widths(node: StageNode, rule: str) -> Iterator[Check]:
    """Elements are copied together where they stay neighbours, and one by one into another order."""
    vector, each = np.asanyarray(node.staging.vector), node.buffer.dtype.bytes
    together = node.buffer.fastest_segment == node.vector_segment
    if not together:
        limit = "must be 1, as the copy changes the order of dimensions"
        nearest = "1" if each in ASYNC_COPIES_BY_BYTES else REGISTER_COPY_HINT
        yield fits(rule, vector == 1, node.staging.vector, limit, nearest, "elements at once")
    size = vector * each
    moved = (size == 4) | (size == 8) | (size == 16)
    nearest = f"use vector={max(1, 4 // each)}" if together else REGISTER_COPY_HINT
    yield fits(rule, moved, node.staging.vector * each, "must be 4, 8 or 16", nearest, "bytes at once")
