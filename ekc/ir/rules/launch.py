"""The rules that a Program must keep before it can become a kernel.

Each rule is a function from a launch and the target's limits to `Check`s, on numbers or on vectors. The API
raises the first refusal, the search reads the masks. A schedule that is read from a file is checked when it
is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np

from ekc.ir.affine import Extent, ceil_div, max_extent, min_extent
from ekc.ir.analysis.occupancy import RESERVED_REGISTERS, estimate_registers
from ekc.ir.hardware.memory import SHARED_LINE_BYTES, WARP
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.lowering.nodes import (
    LaunchTree,
    ReduceNode,
    StageNode,
    count_statements,
)
from ekc.ir.program import Program
from ekc.ir.refusal import Check, at_most, exactly, fits, requires
from ekc.ir.rules.tensor_cores import check_tensor_products
from ekc.ir.rules.vectors import check_async_copies, check_vectors


def check_atomics(kernel: LaunchTree, limits: LaunchLimits) -> Iterator[Check]:
    """Sums that are added by atomics need an accumulator, and are added element by element: vectors of atomic
    additions exist from sm_90 on only."""
    nest, name = kernel.nest, kernel.nest.compute.output.name
    if not nest.is_atomic:
        return
    rule = f"atomic {name}"
    if not nest.has_accumulator:
        yield _require_accumulator(rule, name)
    yield exactly(
        rule,
        nest.store_vector,
        1,
        "elements at once",
        nearest=f'write one element at a time: cache_write("{name}")',
    )


MAX_STATEMENTS = 8192
"""Most statements of a kernel after unrolling; more compile slowly and leave the instruction cache."""


def iterate_checks(program: Program, limits: LaunchLimits) -> Iterator[Check]:
    """The checks of the steps, then every rule applied to every launch."""
    yield from program.checks
    for kernel in derive_launches(program):
        for rule in LAUNCH_RULES:
            yield from rule(kernel, limits)


def enforce_rules(program: Program, limits: LaunchLimits) -> None:
    """Raise the first refusal of a single Program."""
    for check in iterate_checks(program, limits):
        check.enforce()


def check_threads(kernel: LaunchTree, limits: LaunchLimits) -> Iterator[Check]:
    """At most 1024 threads a block, 64 along z."""
    yield at_most("threads per block", kernel.thread_count, limits.threads_per_block)
    limit = limits.threads_per_block_z
    yield at_most(
        "threads along z",
        kernel.compute_level_extent("thread.z"),
        limit,
        nearest=f"use {limit} or fewer, or bind to thread.x",
    )


def check_grid(kernel: LaunchTree, limits: LaunchLimits) -> Iterator[Check]:
    """The extents of a grid, of which y and z have small limits."""
    for level in ("block.x", "block.y", "block.z"):
        limit = limits.grid_x if level == "block.x" else limits.grid_yz
        yield at_most(
            f"grid along {level}",
            kernel.compute_level_extent(level),
            limit,
            "blocks",
            nearest=f"use {limit} or fewer, or bind to block.x",
        )


def check_shared_memory(kernel: LaunchTree, limits: LaunchLimits) -> Iterator[Check]:
    """Tiles of a block must fit its shared memory."""
    limit = limits.shared_bytes_per_block
    yield at_most(
        "shared memory", kernel.shared_bytes, limit, "bytes", nearest=f"use tiles of {limit} bytes in all"
    )


def check_registers(kernel: LaunchTree, limits: LaunchLimits) -> Iterator[Check]:
    """Accumulators, register tiles and addresses of one thread must fit its registers: a kernel that spills
    may take a hundred times as long. The limit is without the reserved registers; in a block of too many
    threads these alone are more than there are, and the limit is 0."""
    share = limits.registers_per_sm // max_extent(kernel.thread_count, WARP)
    budget = max_extent(min_extent(limits.registers_per_thread, share) - RESERVED_REGISTERS, 0)
    yield at_most(
        "registers",
        estimate_registers(kernel),
        budget,
        nearest="use a smaller tile per thread, wider copies or fewer threads",
    )


def check_unrolled_size(kernel: LaunchTree, limits: LaunchLimits) -> Iterator[Check]:
    """Number of statements after unrolling."""
    n = count_statements(kernel.body)
    yield at_most("unrolling", n, MAX_STATEMENTS, "statements", "use a smaller unroll factor or tile")


def check_copy_rounds(kernel: LaunchTree, limits: LaunchLimits) -> Iterator[Check]:
    """A pipelined loop writes out all rounds of its copies, so a staging there has no number of its own."""
    for one in kernel.nest.stagings:
        if one.at is not None and not (isinstance(one.unroll, int) and one.unroll == 0):
            ok = (np.asanyarray(one.unroll) == 0) | (np.asanyarray(kernel.nest.find_loop(one.at).stages) == 1)
            yield fits(
                f"copy {one.name}",
                ok,
                one.unroll,
                limit_text=f"must be 0, as {one.at} is pipelined and writes out all rounds",
                nearest="0",
                unit="rounds to unroll",
            )


def check_block_order(kernel: LaunchTree, limits: LaunchLimits) -> Iterator[Check]:
    """Block loops must be outside of serial loops."""
    outer: str | None = None
    for loop in kernel.nest.loops:
        if loop.is_serial and outer is None:
            outer = loop.name
        if loop.is_block and outer is not None:
            yield requires(
                "loop order",
                False,
                need="block loops outermost",
                problem=f"block loop {loop.name} is inside serial loop {outer}",
                remedy=f'call reorder("{loop.name}", "{outer}")',
            )
            return


def check_accumulator_type(kernel: LaunchTree, limits: LaunchLimits) -> Iterator[Check]:
    """An output of another type than its sum needs an accumulator."""
    compute = kernel.nest.compute
    converts = compute.acc_dtype is not compute.output.dtype
    if compute.reduction_axes and not kernel.nest.has_accumulator and converts:
        name = compute.output.name
        yield requires(
            "accumulator",
            False,
            need=f"{compute.acc_dtype} for {name}",
            problem=f"{name} is summed in {compute.acc_dtype} and stored as {compute.output.dtype}",
            remedy=f'call cache_write("{name}", "register") first',
        )


def check_reduction_lanes(kernel: LaunchTree, limits: LaunchLimits) -> Iterator[Check]:
    """Reduction loops over threads: side by side, within full warps, powers of two, and an accumulator."""
    lanes = [x for x in kernel.thread_loops if x.is_reduction]
    if not lanes:
        return
    rule, name = "reduction over lanes", kernel.nest.compute.output.name
    if not kernel.nest.has_accumulator:
        yield _require_accumulator(rule, name)
    first = kernel.thread_loops.index(lanes[0])
    between = [x.name for x in kernel.thread_loops[first : first + len(lanes)] if not x.is_reduction]
    if between:
        both = " and ".join(x.name for x in lanes)
        yield requires(
            rule,
            False,
            need=f"{both} side by side",
            problem=f"{between[0]} runs between {both}",
            remedy=f"reorder {between[0]} outside of both",
        )
    n = prod(x.extent for x in lanes)
    count, step = np.asanyarray(n), np.asanyarray(kernel.reduction_lane_stride)
    ok = (count <= WARP) & _is_power_of_two(count)
    yield fits(rule, ok, n, f"must be a power of two up to {WARP}", WARP, "lanes")
    most = np.maximum(WARP // np.maximum(count, 1), 1)
    ok = (step <= most) & _is_power_of_two(step)
    yield fits(rule, ok, step, "must be a power of two up to {}", most, "threads that run faster", most)
    yield _check_full_warps(rule, kernel.thread_count)


def _require_accumulator(rule: str, name: str) -> Check:
    return requires(
        rule,
        False,
        need="an accumulator",
        problem=f"{name} has no accumulator",
        remedy=f'call cache_write("{name}", "register") first',
    )


def _check_full_warps(rule: str, thread_count: Extent) -> Check:
    ok, limit = np.asanyarray(thread_count) % WARP == 0, f"must be a multiple of {WARP}"
    return fits(rule, ok, thread_count, limit, lambda need, _: ceil_div(need, WARP) * WARP, "threads")


def _is_power_of_two(n: Any) -> Any:
    return (n & (n - 1)) == 0


def check_fused_vectors(kernel: LaunchTree, limits: LaunchLimits) -> Iterator[Check]:
    """A tile that is computed on the spot cannot be filled in vectors."""
    for node in kernel.nodes:
        if isinstance(node, StageNode) and node.producer_reads is not None:
            yield exactly(f"vector width of {node.staging.name}", node.staging.vector, 1, "elements at once")


def check_fused_reductions(kernel: LaunchTree, limits: LaunchLimits) -> Iterator[Check]:
    """Reductions on the spot need full warps, and warps per element that divide those of the block."""
    for node in kernel.nodes:
        if isinstance(node, ReduceNode):
            rule, warps = "reduction on the spot", node.staging.warps
            yield _check_full_warps(rule, kernel.thread_count)
            block_warps = max_extent(kernel.thread_count // WARP, 1)
            ok = np.asanyarray(block_warps) % max_extent(warps, 1) == 0
            near, unit = np.gcd(warps, block_warps), "warps an element"
            yield fits(rule, ok, warps, "must be a divisor of {}", near, unit, block_warps)


def check_tile_lines(kernel: LaunchTree, limits: LaunchLimits) -> Iterator[Check]:
    """Swizzled tiles and panels consist of whole lines: an element may change places with any of its line."""
    for b in kernel.buffers:
        if b.is_swizzled:
            size, chunks = b.elements * b.dtype.bytes, np.asanyarray(b.swizzle)
            has_full_lines = (chunks == 1) | (np.asanyarray(size) % SHARED_LINE_BYTES == 0)
            yield fits(
                f"swizzle of {b.name}",
                has_full_lines,
                size,
                limit_text=f"must be a multiple of {SHARED_LINE_BYTES}",
                nearest="leave the swizzle out, or change the pad",
                unit="bytes",
            )
        if b.panel:
            has_full_lines = np.asanyarray(b.row_pitch) % b.panel == 0
            rule, unit = f"cache_read {b.name}", "elements in rows of panels"
            yield fits(rule, has_full_lines, b.row_pitch, "must be a multiple of {}", b.panel, unit, b.panel)


LaunchRule = Callable[[LaunchTree, LaunchLimits], Iterator[Check]]
LAUNCH_RULES: tuple[LaunchRule, ...] = (
    check_threads,
    check_grid,
    check_shared_memory,
    check_registers,
    check_unrolled_size,
    check_copy_rounds,
    check_block_order,
    check_accumulator_type,
    check_atomics,
    check_reduction_lanes,
    check_vectors,
    check_fused_vectors,
    check_fused_reductions,
    check_async_copies,
    check_tile_lines,
    check_tensor_products,
)
