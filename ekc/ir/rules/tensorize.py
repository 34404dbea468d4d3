"""What a product on tensor cores asks of a launch: the target, the loops' lengths, no edge that cuts it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ekc.ir.limits import Limits
from ekc.ir.nodes import FragmentNode, Kernel, MmaNode, SharedFactor, walk
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
        yield _on_target(node, limits)
        yield from extents_fit(kernel.nest, node.tile)
        for factor in (node.a, node.b):
            yield from _factor_fits(kernel, node, factor)
        whole = ~np.asanyarray(needed(node.compute.guards))
        edge = "a depth that its zero-filled tiles cover"
        rule = f"{RULE} {node.tile.product.name}"
        yield Check(rule, whole, "a guard on the depth", edge, "a depth that its pieces divide")
    for staging in kernel.nest.stagings:
        if staging.scope == "fragment" and not products:
            yield Check(RULE, False, f"a product that reads {staging.name}", "none", "tensorize(...)")


def _on_target(node: MmaNode, limits: Limits) -> Check:
    """The target has the instruction."""
    name = node.tile.product.name
    if isinstance(node.tile.product, GroupProduct):
        return Check(f"{RULE} {name}", limits.group_products, name, "sm_90a alone", "mma.m16n8k16")
    targets = f"targets from sm_{LEAST_ARCH} on"
    return Check(f"{RULE} {name}", limits.tensor_cores, name, targets, "leave tensorize out")


def _factor_fits(kernel: Kernel, node: MmaNode, factor: FragmentNode | SharedFactor) -> Iterator[Check]:
    """Elements of the instruction's type, where it finds them."""
    if isinstance(factor, SharedFactor):
        yield from descriptor_fits(kernel, node, factor)
    # A sum made on the spot lies there as it is summed, not as the tensor would be stored.
    staging, held, product = factor.staging, factor.source.dtype, node.tile.product
    need, alone = f"{staging.source} of {product.dtype}", f"leave {staging.tensor} a launch of its own"
    yield Check(f"{RULE} {product.name}", held is product.dtype, need, f"{held}, as it is summed", alone)
