"""What sums that blocks share must keep to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ekc.ir.limits import Limits
from ekc.ir.nodes import LaunchTree
from ekc.ir.refusal import Check


def check_atomics(kernel: LaunchTree, limits: Limits) -> Iterator[Check]:
    """What is added by atomics is held until a thread is done, and added element by element: vectors of
    atomic additions begin with sm_90."""
    nest, name = kernel.nest, kernel.nest.compute.output.name
    if not nest.is_atomic:
        return
    rule = f"atomic {name}"
    if not nest.has_accumulator:
        yield Check(rule, False, "an accumulator", "none", f'cache_write("{name}", "register")')
    width = nest.store_vector
    near = f'cache_write("{name}"), one at a time'
    yield Check(rule, np.asanyarray(width) == 1, width, 1, near, "elements at once")
