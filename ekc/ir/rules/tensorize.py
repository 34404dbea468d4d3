"""What a product on tensor cores asks of a launch: the target, the loops' lengths, no edge that cuts it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ekc.ir.limits import Limits
from ekc.ir.nodes import Kernel, MmaNode, SharedFactor, walk
from ekc.ir.patterns.guards import needed
from ekc.ir.refusal import Check
from ekc.ir.rules.descriptors import descriptor_fits
from ekc.ir.tensor_core import LEAST_ARCH
from ekc.ir.tensor_tile import RULE, extents_fit
from ekc.ir.warpgroup import GroupProduct


def products_fit(kernel: Kernel, limits: Limits) -> Iterator[Check]:
    """Every product of a launch, and no fragment without one."""
    products = [node for node in walk(kernel.body) if isinstance(node, MmaNode)]
    for node in products:
        product = node.tile.product
        grouped = isinstance(product, GroupProduct)
        rule, targets = (
            f"{RULE} {product.name}",
            "sm_90a alone" if grouped else f"targets from sm_{LEAST_ARCH} on",
        )
        has = limits.group_products if grouped else limits.tensor_cores
        yield Check(rule, has, product.name, targets, "mma.m16n8k16" if grouped else "leave tensorize out")
        yield from extents_fit(kernel.nest, node.tile)
        for factor in (node.a, node.b):
            if isinstance(factor, SharedFactor):
                yield from descriptor_fits(kernel, node, factor)
            # A sum made on the spot lies there as it is summed, not as the tensor would be stored.
            staging, held = factor.staging, factor.source.dtype
            need = f"{staging.source} of {product.dtype}"
            alone = f"leave {staging.tensor} a launch of its own"
            yield Check(rule, held is product.dtype, need, f"{held}, as it is summed", alone)
        whole = ~np.asanyarray(needed(node.compute.guards))
        edge = "a depth that its zero-filled tiles cover"
        yield Check(rule, whole, "a guard on the depth", edge, "a depth that its pieces divide")
    for staging in kernel.nest.stagings:
        if staging.scope == "fragment" and not products:
            yield Check(RULE, False, f"a product that reads {staging.name}", "none", "tensorize(...)")
