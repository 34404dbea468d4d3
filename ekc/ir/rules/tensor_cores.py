"""Rules of tensor-core products: the target, the extents of loops, and tiles that no edge cuts.

wgmma reads shared tiles by descriptors, which have rules of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ekc.ir.affine import Atom, Extent
from ekc.ir.hardware.memory import SWIZZLE_CHUNKS
from ekc.ir.hardware.target import FIRST_AMPERE_ARCH, LaunchLimits
from ekc.ir.hardware.wgmma import WGMMA_SWIZZLE, WgmmaFamily
from ekc.ir.lowering.buffers import Buffer, has_needed_guard
from ekc.ir.lowering.fragments import compute_tile_strides, is_mn_major
from ekc.ir.lowering.nodes import FragmentNode, LaunchTree, MmaNode, SharedFactor
from ekc.ir.lowering.tensor_tiles import TENSORIZE_RULE, check_tile_extents
from ekc.ir.refusal import Check, exactly, fits, requires


def check_descriptor(kernel: LaunchTree, node: MmaNode, factor: SharedFactor) -> Iterator[Check]:
    """The tile must be filled by cp.async, in swizzled panels, its elements where the descriptor has them."""
    buffer = factor.source.buffer
    assert buffer is not None
    rule = f"{TENSORIZE_RULE} {node.tile.instruction.name}"
    yield from _check_async_source(rule, kernel, factor)
    if not buffer.panel:
        yield requires(
            rule,
            False,
            need=f"{buffer.name} in panels",
            problem=f"{buffer.name} has no panels",
            remedy=f"call cache_read with panel=64, swizzle={WGMMA_SWIZZLE}",
        )
        return
    yield exactly(rule, buffer.swizzle, WGMMA_SWIZZLE, f"chunks to swizzle in {buffer.name}")
    patterns = np.asanyarray(buffer.row_count) % SWIZZLE_CHUNKS[-1] == 0
    yield fits(
        rule,
        patterns,
        buffer.row_count,
        limit_text=f"must be a multiple of {SWIZZLE_CHUNKS[-1]}",
        nearest=64,
        unit=f"rows of {buffer.name}",
    )
    mn_major = is_mn_major(node, factor)
    if mn_major is None:
        yield requires(
            rule,
            False,
            need=f"{factor.source.spec.name} stored along its rows or along the depth",
            problem=f"{buffer.name} is stored neither along its rows nor along the depth",
            remedy="use unfused axes, another order=, or mma.m16n8k16",
        )
        return
    yield from _check_tile_strides(rule, node, factor)
    yield from _check_tile_starts(rule, kernel, node, factor, mn_major)


def _check_async_source(rule: str, kernel: LaunchTree, factor: SharedFactor) -> Iterator[Check]:
    """The tile must come by asynchronous copies: products need the fence at the wait for these."""
    staging = factor.staging
    yield requires(
        rule,
        kernel.nest.is_async(staging),
        need=f"{staging.name} copied by cp.async",
        problem=f"{staging.name} is not filled by asynchronous copies",
        remedy=f'call pipeline("{staging.at}", stages=3, copy="async")',
    )


def _check_tile_strides(rule: str, node: MmaNode, factor: SharedFactor) -> Iterator[Check]:
    """The loops of the product must move through the tile as the instruction does."""
    assert factor.source.buffer is not None
    steps = dict(factor.source.address.terms)
    for loop, step in compute_tile_strides(node, factor).items():
        found = np.asanyarray(steps.get(loop, 0))
        yield fits(
            rule,
            found == step,
            found,
            limit_text=f"must be {{}} in {factor.source.buffer.name}",
            nearest="use an unfused axis",
            unit=f"elements a step of {loop}",
            limit=step,
        )


def _check_tile_starts(
    rule: str, kernel: LaunchTree, node: MmaNode, factor: SharedFactor, is_mn_major: bool
) -> Iterator[Check]:
    """The other loops must lead to places where a tile can begin."""
    buffer, product = factor.source.buffer, node.tile.instruction
    assert buffer is not None
    limit = f"must be whole patterns of {buffer.name}"
    nearest = buffer.panel if is_mn_major else product.depth
    within = compute_tile_strides(node, factor)
    at = factor.staging.at
    inside = kernel.nest.list_inner_loops(at)
    others: list[tuple[Atom, Extent]] = [t for t in factor.source.address.terms if t[0] not in within]
    for atom, step in [*others, ("the first element", factor.source.address.const)]:
        begins = _can_begin(np.asanyarray(step), buffer, product.depth, is_mn_major)
        if isinstance(atom, str):
            begins = begins | (np.asanyarray(kernel.nest.extents.get(atom, 2)) == 1)
            yield fits(rule, begins, step, limit, nearest, f"elements a step of {atom}")
            continue
        yield fits(rule, begins, step, limit, nearest, "elements a step of a joint loop")
        joint = ", ".join(sorted(atom.find_variables().intersection(inside)))
        yield requires(
            rule,
            not joint,
            need=f"joint loops outside of {at}",
            problem=f"joint loop {joint} runs inside {at}",
            remedy=f'fuse outside of "{at}"',
        )


def _can_begin(step: Any, buffer: Buffer, depth: int, is_mn_major: bool) -> Any:
    """Whether a tile can begin `step` elements later: at another pattern or panel, or, where rows run along
    the depth, at the next product's part of the rows."""
    width: Extent = buffer.row_pitch
    along = buffer.panel if is_mn_major else depth
    within = (step >= 0) & (step < width) & (step % along == 0)
    return (step % (SWIZZLE_CHUNKS[-1] * width) == 0) | within


def check_tensor_products(kernel: LaunchTree, limits: LaunchLimits) -> Iterator[Check]:
    """Every product of a launch, and no fragment without a product."""
    products = [node for node in kernel.nodes if isinstance(node, MmaNode)]
    for node in products:
        yield _make_target_check(node, limits)
        yield from check_tile_extents(kernel.nest, node.tile)
        for factor in (node.a, node.b):
            yield from _check_factor(kernel, node, factor)
        unguarded = ~np.asanyarray(has_needed_guard(node.compute.guards))
        yield requires(
            f"{TENSORIZE_RULE} {node.tile.instruction.name}",
            unguarded,
            need="no guard on the depth",
            problem="the depth ends inside a product, past its zero-filled tiles",
            remedy="split the depth by exact divisors",
        )
    for staging in kernel.nest.stagings:
        if staging.scope == "fragment" and not products:
            yield requires(
                TENSORIZE_RULE,
                False,
                need=f"a product that reads {staging.name}",
                problem=f"no product reads {staging.name}",
                remedy="call tensorize(...)",
            )


def _make_target_check(node: MmaNode, limits: LaunchLimits) -> Check:
    """The target must have the instruction."""
    name = node.tile.instruction.name
    if isinstance(node.tile.instruction, WgmmaFamily):
        return requires(
            f"{TENSORIZE_RULE} {name}",
            limits.group_products,
            need=name,
            problem="only sm_90a has the instruction",
            remedy="use mma.m16n8k16",
        )
    return requires(
        f"{TENSORIZE_RULE} {name}",
        limits.tensor_cores,
        need=name,
        problem=f"targets before {FIRST_AMPERE_ARCH} do not have the instruction",
        remedy="leave tensorize out",
    )


def _check_factor(kernel: LaunchTree, node: MmaNode, factor: FragmentNode | SharedFactor) -> Iterator[Check]:
    """The factor must have the instruction's type, and be where the instruction reads it."""
    if isinstance(factor, SharedFactor):
        yield from check_descriptor(kernel, node, factor)
    # A sum that is computed on the spot has the accumulator's type, not that of the stored tensor.
    staging, dtype, product = factor.staging, factor.source.dtype, node.tile.instruction
    yield requires(
        f"{TENSORIZE_RULE} {product.name}",
        dtype is product.dtype,
        need=f"{staging.source} of {product.dtype}",
        problem=f"{staging.source} is {dtype}, as it is summed",
        remedy=f"leave {staging.tensor} a launch of its own",
    )
