"""What a product of a warpgroup asks of a tile that it finds in shared memory by a descriptor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ekc.ir.access import Buffer
from ekc.ir.descriptors import across, units
from ekc.ir.linear import Extent
from ekc.ir.nodes import Kernel, MmaNode, SharedFactor
from ekc.ir.refusal import Check
from ekc.ir.swizzle import CHUNKS
from ekc.ir.tensor_tile import RULE
from ekc.ir.warpgroup import SWIZZLE


def descriptor_fits(kernel: Kernel, node: MmaNode, factor: SharedFactor) -> Iterator[Check]:
    """Copied ahead, in swizzled panels, its elements where the descriptor says that they are."""
    staging, buffer, product = factor.staging, factor.source.buffer, node.tile.product
    assert buffer is not None
    rule = f"{RULE} {product.name}"
    flies = kernel.nest.asynchronous(staging)
    how = f'pipeline("{staging.at}", stages=3, copy="async")'
    yield Check(rule, flies, f"{staging.name} copied by asynchronous copies", "it is not", how)
    if not buffer.panel:
        limit, near = "its rows are stored whole", f"panel=64, swizzle={SWIZZLE}"
        yield Check(rule, False, f"{staging.name} in panels", limit, near)
        return
    swizzle = np.asanyarray(buffer.swizzle)
    yield Check(
        rule, swizzle == SWIZZLE, buffer.swizzle, SWIZZLE, SWIZZLE, f"chunks to swizzle in {buffer.name}"
    )
    patterns = np.asanyarray(buffer.rows) % CHUNKS[-1] == 0
    yield Check(rule, patterns, buffer.rows, CHUNKS[-1], 64, f"rows of {buffer.name}", "a multiple of {}")
    need = f"{factor.source.spec.name} stored along its rows or along the depth"
    turned = across(node, factor)
    if turned is None:
        yield Check(rule, False, need, f"{buffer.name} is neither", "another order=, or mma.m16n8k16")
        return
    steps = dict(factor.source.address.terms)
    for loop, step in units(node, factor).items():
        found = np.asanyarray(steps.pop(loop, 0))
        limit = f"{{}} in {buffer.name}"
        yield Check(rule, found == step, found, step, "an unfused axis", f"elements a step of {loop}", limit)
    for atom, step in [*steps.items(), ("the first element", factor.source.address.const)]:
        begins = _begins(np.asanyarray(step), buffer, product.depth, turned)
        if isinstance(atom, str):
            begins = begins | (np.asanyarray(kernel.nest.extents.get(atom, 2)) == 1)
        limit, nearest = f"whole patterns of {buffer.name}", buffer.panel if turned else product.depth
        yield Check(rule, begins, step, None, nearest, f"elements a step of {atom}", limit)


def _begins(step: Any, buffer: Buffer, depth: int, turned: bool) -> Any:
    """Whether a tile may begin so many elements further on: at other patterns, at another panel, or, where
    rows run along the depth, at the next product's part of them."""
    width: Extent = buffer.width
    along = buffer.panel if turned else depth
    return (step % (CHUNKS[-1] * width) == 0) | ((step < width) & (step % along == 0))
