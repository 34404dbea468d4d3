"""What a product on tensor cores asks of a launch: the target, the loops' lengths, no edge that cuts it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ekc.ir.limits import Limits
from ekc.ir.nodes import FragmentNode, LaunchTree, MmaNode, SharedFactor, walk_nodes
from ekc.ir.patterns.guards import has_needed_guard
from ekc.ir.refusal import Check
from ekc.ir.rules.descriptors import check_descriptor
from ekc.ir.tensor_core import MIN_MMA_ARCH
from ekc.ir.tensor_tile import TENSORIZE_RULE, check_tile_extents
from ekc.ir.warpgroup import WgmmaFamily


def check_tensor_products(kernel: LaunchTree, limits: Limits) -> Iterator[Check]:
    """Every product of a launch, and no fragment without one."""
    products = [node for node in walk_nodes(kernel.body) if isinstance(node, MmaNode)]
    for node in products:
        yield _make_target_check(node, limits)
        yield from check_tile_extents(kernel.nest, node.tile)
        for factor in (node.a, node.b):
            yield from _check_factor(kernel, node, factor)
        whole = ~np.asanyarray(has_needed_guard(node.compute.guards))
        edge = "a depth that its zero-filled tiles cover"
        rule = f"{TENSORIZE_RULE} {node.tile.instruction.name}"
        yield Check(rule, whole, "a guard on the depth", edge, "a depth that its pieces divide")
    for staging in kernel.nest.stagings:
        if staging.scope == "fragment" and not products:
            yield Check(
                TENSORIZE_RULE, False, f"a product that reads {staging.name}", "none", "tensorize(...)"
            )


def _make_target_check(node: MmaNode, limits: Limits) -> Check:
    """The target has the instruction."""
    name = node.tile.instruction.name
    if isinstance(node.tile.instruction, WgmmaFamily):
        return Check(f"{TENSORIZE_RULE} {name}", limits.group_products, name, "sm_90a alone", "mma.m16n8k16")
    targets = f"targets from sm_{MIN_MMA_ARCH} on"
    return Check(f"{TENSORIZE_RULE} {name}", limits.tensor_cores, name, targets, "leave tensorize out")


def _check_factor(kernel: LaunchTree, node: MmaNode, factor: FragmentNode | SharedFactor) -> Iterator[Check]:
    """Elements of the instruction's type, where it finds them."""
    if isinstance(factor, SharedFactor):
        yield from check_descriptor(kernel, node, factor)
    # A sum made on the spot lies there as it is summed, not as the tensor would be stored.
    staging, held, product = factor.staging, factor.source.dtype, node.tile.instruction
    need, alone = f"{staging.source} of {product.dtype}", f"leave {staging.tensor} a launch of its own"
    yield Check(
        f"{TENSORIZE_RULE} {product.name}", held is product.dtype, need, f"{held}, as it is summed", alone
    )
