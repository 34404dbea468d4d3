"""Quantities of a Program, counted from its trees: operations, traffic at each level, parallelism.

One walk serves a single Program and a population: extents are integers or int64 vectors, products are taken
in float64, and no branch depends on a value. Counts are per block unless the name says otherwise; requests
are warp instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ekc.ir import expr as ex
from ekc.ir.affine import choose, max_extent
from ekc.ir.analysis.guards import LaneSteps, compute_pass_shares, merge_guards
from ekc.ir.analysis.issued_accesses import (
    compute_conversion_cost,
    compute_converted_share,
    compute_copy_width,
    compute_epilogue_read_share,
    compute_fetch_width,
    compute_issued_share,
    compute_merged_width,
    compute_read_share,
    list_unrolled_loops,
)
from ekc.ir.analysis.occupancy import compute_parallelism, compute_reuse
from ekc.ir.analysis.population_math import PopulationValue, multiply_extents, to_float64
from ekc.ir.analysis.traffic import TrafficCounter, collect_extents
from ekc.ir.compute import Compute, list_operations
from ekc.ir.dtypes import TF32, DType, find_read_type
from ekc.ir.hardware.memory import SHARED_LINE_BYTES, WARP
from ekc.ir.hardware.mma import MMA_ROWS, REGISTER_BYTES
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.hardware.wgmma import STRIP_COLUMNS, WARPGROUP_WARPS
from ekc.ir.lowering import nodes as tree
from ekc.ir.lowering.buffers import BoundsGuard, substitute_access
from ekc.ir.lowering.fragments import (
    derive_ldmatrix_fit,
    derive_register_element,
    derive_row_pointer,
    iterate_ldmatrix_variants,
    list_element_strides,
)
from ekc.ir.lowering.lower import derive_launches
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.program import Program
from ekc.ir.trace.recorder import has_any

SUMMED_QUANTITIES = (
    "fma",
    "tensor_products",
    "group_products",
    "operations",
    "loop_steps",
    "barriers",
    "shuffles",
    "conversions",
    "guards",
    "global_load_requests",
    "global_load_sectors",
    "global_store_requests",
    "global_store_sectors",
    "global_passes",
    "shared_load_requests",
    "shared_load_wavefronts",
    "shared_store_requests",
    "shared_store_wavefronts",
    "shared_load_bytes",
    "global_load_bytes",
    "one_pass_requests",
    "async_copies",
)
"""Quantities that the walk adds up: warp instructions of a block, and `fma` and bytes of a block. Passes
are those of global memory through L1, wavefronts those of shared memory; `one_pass_requests` has the requests
of both that take a single one. An asynchronous copy, one instruction, counts as a request to load and as one
to store."""

WAIT_QUANTITIES = (
    "direct_load_words",
    "direct_load_trips",
    "tile_load_words",
    "tile_load_trips",
    "copy_waits",
    "group_waits",
    "body_trips",
)
"""Quantities of the waits of one thread, of the launch with most arithmetic: words of 4 bytes that it loads
from global memory to compute with (direct) or to store them in shared memory (tile), the most times that one
such load runs, its waits for asynchronous copies and for groups of `wgmma`, and the most times that an
instruction of its arithmetic runs."""

_NAN_SELECT_INSTRUCTIONS = 2
"""Instructions (comparison, select) that propagate NaN where the instruction for max or min does not."""


def analyse_program(
    program: Program, limits: LaunchLimits, member_count: int = 1
) -> dict[str, NDArray[np.float64]]:
    """Every quantity as a float64 vector of `member_count`, summed over launches where that makes sense.

    Occupancy and shape are those of the launch with most arithmetic.
    """
    vectors = {k: np.asanyarray(v, dtype=np.float64) for k, v in quantities(program, limits).items()}
    return {k: np.broadcast_to(v, (member_count,)) for k, v in vectors.items()}


def quantities(program: Program, limits: LaunchLimits) -> dict[str, PopulationValue]:
    """The quantities of `analyse_program`, each a number where all members of a population have the same."""
    launches = derive_launches(program)
    results = [_QuantityWalk(kernel, limits).count_quantities() for kernel in launches]
    main = max(range(len(results)), key=lambda i: launches[i].nest.compute.flops)
    total = dict(results[main])
    for i, other in enumerate(results):
        if i != main:
            for name in (*("total_" + n for n in SUMMED_QUANTITIES), "l2_bytes", "dram_bytes"):
                total[name] = total[name] + other[name]
    total["launches"] = float(len(results))
    return total


class _QuantityWalk:
    """The walk over the tree of one launch."""

    def __init__(self, kernel: LaunchTree, limits: LaunchLimits) -> None:
        self.kernel, self.limits = kernel, limits
        self.sums: dict[str, PopulationValue] = dict.fromkeys(SUMMED_QUANTITIES, 0.0)
        self.thread_count = to_float64(kernel.thread_count)
        self.warp_count = np.ceil(self.thread_count / WARP)
        self.waits: dict[str, PopulationValue] = dict.fromkeys(WAIT_QUANTITIES, 0.0)
        self.loop_path: list[tree.LoopNode] = []
        self.loop_runs: PopulationValue = 1.0
        """Times that code at this place in the tree runs, with unrolled loops as several copies of it."""
        self.traffic = TrafficCounter(kernel, self._add_quantity)

    def count_quantities(self) -> dict[str, PopulationValue]:
        """All quantities of the launch."""
        self._visit_nodes(self.kernel.body, 1.0)
        blocks = to_float64(self.kernel.block_count)
        total = {"total_" + name: value * blocks for name, value in self.sums.items()}
        on_device = compute_parallelism(self.kernel, self.limits, self.sums["fma"])
        resident = on_device["resident_blocks"] * self.limits.sms
        return self.sums | self.waits | total | on_device | compute_reuse(self.kernel, self.sums, resident)

    def _visit_nodes(self, nodes: Sequence[tree.Node], trips: PopulationValue) -> None:
        for node in nodes:
            match node:
                case tree.LoopNode():
                    self._count_loop(node, trips)
                case tree.StageNode():
                    self._count_copy(node, trips)
                case tree.FragmentNode():
                    self._count_fragment(node, trips)
                case tree.ReduceNode():
                    self._count_reduce(node, trips)
                case tree.ComputeNode():
                    self._count_compute(node, trips)
                case tree.MmaNode():
                    self._count_product(node, trips)
                case tree.WgmmaGroupNode():
                    self.waits["group_waits"] = self.waits["group_waits"] + trips
                    self._visit_nodes(node.body, trips)
                case tree.LaneCombineNode():
                    self._count_lane_combine(node, trips)
                case tree.WriteNode():
                    self._count_accumulator_write(node, trips)
                case tree.InitNode() if node.buffer is None:
                    count = trips * to_float64(node.region.size)
                    self.traffic.count_access(node.target, "store", 1, count, node.target.guards, node.region)
                case tree.BarrierNode():
                    self._add_quantity("barriers", trips)
                case tree.CopyWaitNode():
                    self._add_quantity("barriers", trips)
                    self.waits["copy_waits"] = self.waits["copy_waits"] + trips
                case _:
                    pass

    def _count_lane_combine(self, node: tree.LaneCombineNode, trips: PopulationValue) -> None:
        lanes = multiply_extents(x.extent for x in node.reduction_lanes)
        steps = np.log2(np.maximum(lanes, 1.0))
        shuffles = trips * to_float64(node.buffer.elements) * steps * self.warp_count
        self._add_quantity("shuffles", shuffles)
        selects = self._count_combine_selects(self.kernel.nest.compute)
        self._add_quantity("operations", shuffles * selects)

    def _count_accumulator_write(self, node: tree.WriteNode, trips: PopulationValue) -> None:
        elements = trips * to_float64(node.region.size)
        count = elements / to_float64(node.vector)
        guards = node.target.guards
        self._add_quantity("guards", trips * _count_needed_guards(guards) * self.warp_count)
        self._add_conversions(node.buffer.dtype, node.target.dtype, elements)
        if self.kernel.nest.epilogue is not None:
            self._count_epilogue(node, elements)
        self.traffic.count_access(node.target, "store", node.vector, count, guards, node.region)
        if node.is_atomic:
            # L2 reads the element that it changes.
            self.traffic.count_access(node.target, "load", 1, count, guards, node.region)

    def _add_quantity(self, name: str, value: PopulationValue) -> None:
        self.sums[name] = self.sums[name] + value

    def _add_conversions(self, source: DType, target: DType, elements: PopulationValue) -> None:
        """Conversions of so many elements by each thread, if the types differ."""
        cost = compute_conversion_cost(source, target)
        if cost:
            self._add_quantity("conversions", elements * self.warp_count * cost)

    def _add_loads(
        self, kind: str, item_bytes: int, elements: PopulationValue, runs: PopulationValue
    ) -> None:
        """Loads from global memory by one thread: "direct" or "tile", as in `WAIT_QUANTITIES`."""
        words, trips = f"{kind}_load_words", f"{kind}_load_trips"
        self.waits[words] = self.waits[words] + elements * (item_bytes / REGISTER_BYTES)
        self.waits[trips] = np.maximum(self.waits[trips], runs)

    def _count_loop(self, node: tree.LoopNode, trips: PopulationValue) -> None:
        extent = to_float64(node.loop.extent)
        copies = to_float64(node.copies)
        steps = choose(copies >= extent, 0.0, extent / copies)
        self._add_quantity("loop_steps", trips * steps * self.warp_count)
        outer_runs = self.loop_runs
        self.loop_runs = outer_runs * max_extent(steps, 1.0)
        self.loop_path.append(node)
        self._visit_nodes(node.body, trips * extent)
        self.loop_path.pop()
        self.loop_runs = outer_runs
        waits = sum(isinstance(n, tree.BarrierNode) for n in node.body)
        if waits and not node.is_async:
            # A pipelined loop has one barrier an iteration and one before the first.
            fewer = trips * (extent + 1 - waits * extent)
            self._add_quantity("barriers", choose(to_float64(node.loop.stages) > 1, fewer, 0.0))

    def _count_epilogue(self, node: tree.WriteNode, elements: PopulationValue) -> None:
        """Arithmetic and reads of the epilogue for each stored element."""
        guards, nest = node.target.guards, self.kernel.nest
        extents = collect_extents(nest, node.region)
        runs = elements * compute_pass_shares(guards, extents, self.traffic.lane_steps).warp_share
        epilogue = nest.epilogue or nest.compute
        self._add_quantity("operations", runs * self.warp_count * self._count_instructions(epilogue))
        for access in node.reads.values():
            if access.buffer is not None:
                continue
            width, share = compute_fetch_width(node, access), compute_epilogue_read_share(node, access)
            read_type = find_read_type(access.dtype, nest.compute.acc_dtype)
            self._add_conversions(access.dtype, read_type, runs * share * to_float64(width))
            self._add_quantity("guards", runs * share * _count_needed_guards(access.guards) * self.warp_count)
            all_guards = merge_guards(guards, access.guards)
            self.traffic.count_access(access, "load", width, elements * share, all_guards, node.region)

    def _count_copy(self, node: tree.StageNode, trips: PopulationValue) -> None:
        """A copy: by all threads of the block into shared memory, or by each thread into its registers."""
        size, guard_count = to_float64(node.buffer.region.size), _count_needed_guards(node.source.guards)
        if node.buffer.scope == "shared":
            rounds = np.ceil(size / to_float64(node.staging.vector) / self.thread_count)
            self._add_quantity("guards", trips * rounds * guard_count * self.warp_count)
            self.traffic.count_copy(node, trips)
            if not node.is_async:
                elements = trips * size / self.thread_count
                self._add_loads("tile", node.source.dtype.bytes, elements, self.loop_runs)
            return
        width = compute_copy_width(node, self.loop_path, self.kernel.nest)
        count = trips * size / to_float64(width)
        self._add_quantity("guards", count * guard_count * self.warp_count)
        self._add_conversions(node.source.dtype, node.buffer.dtype, trips * size)
        self.traffic.count_access(node.source, "load", width, count, node.source.guards, node.buffer.region)
        if node.source.buffer is None:
            self._add_loads("direct", node.source.dtype.bytes, trips * size, self.loop_runs)

    def _count_fragment(self, node: tree.FragmentNode, trips: PopulationValue) -> None:
        """Fragments that each warp loads: by `ldmatrix`, or element by element."""
        count, registers = trips * to_float64(node.fragment_count), node.registers_per_lane
        cost = compute_conversion_cost(node.source.dtype, self.kernel.nest.compute.acc_dtype)
        if node.source.dtype is TF32:
            self._add_quantity("conversions", count * registers * self.warp_count * cost)
        for across, pair, share in iterate_ldmatrix_variants(node):
            if has_any(share):
                width = 1 + pair
                row = substitute_access(node.source, derive_row_pointer(node, across, pair))
                together: LaneSteps = {node.fragment_loops[-1].name: 2} if pair else {}
                self.traffic.count_matrix_loads(row, registers * width, count / width * share, together)
        by_element = ~derive_ldmatrix_fit(node).is_possible
        if has_any(by_element):
            element = substitute_access(node.source, derive_register_element(node, 0, 0))
            loads = count * registers * node.instruction.elements_per_register * by_element
            moves = list_element_strides(node)
            self.traffic.count_access(element, "load", 1, loads, (), lane_moves=moves)

    def _count_product(self, node: tree.MmaNode, trips: PopulationValue) -> None:
        """A product on tensor cores. A `wgmma` counts for each warp, and reads shared lines of 128 bytes."""
        tile = node.tile
        points = multiply_extents(x.extent for x in tile.inner_loops)
        self._add_quantity("fma", trips * points * self.thread_count)
        self.waits["body_trips"] = np.maximum(self.waits["body_trips"], self.loop_runs)
        if tile.strip_loop is None:
            self._add_quantity("tensor_products", trips * self.warp_count)
            return
        strips = to_float64(tile.strip_loop.extent)
        self._add_quantity("group_products", trips * self.warp_count * strips)
        size = tile.instruction.depth * tile.instruction.dtype.bytes
        lines = WARPGROUP_WARPS * MMA_ROWS + STRIP_COLUMNS * strips
        read_bytes = lines * size * trips * self.warp_count / WARPGROUP_WARPS
        self._add_quantity("shared_load_bytes", read_bytes)
        self._add_quantity("shared_load_wavefronts", read_bytes / SHARED_LINE_BYTES)

    def _count_compute(self, node: tree.ComputeNode, trips: PopulationValue) -> None:
        compute = node.nest.compute
        self.waits["body_trips"] = np.maximum(self.waits["body_trips"], self.loop_runs)
        passed = compute_pass_shares(node.guards, node.nest.extents, self.traffic.lane_steps)
        runs = trips * passed.warp_share * self.warp_count
        self._add_quantity("fma", trips * passed.lane_share * self.thread_count)
        instructions = max(self._count_instructions(compute), 1) + self._count_combine_selects(compute)
        self._add_quantity("operations", runs * instructions)
        self._add_quantity("guards", trips * self.warp_count * _count_needed_guards(node.guards))
        unrolled = list_unrolled_loops(self.loop_path, node.nest)
        for access in node.reads.values():
            cost = compute_conversion_cost(access.dtype, find_read_type(access.dtype, compute.acc_dtype))
            if cost:
                share = compute_converted_share(self.loop_path, access, node.nest)
                self._add_quantity("conversions", runs * share * cost)
            if access.buffer is None or access.buffer.scope == "shared":
                width = compute_merged_width(access, unrolled)
                count = trips * compute_read_share(self.loop_path, access, node.nest) / width
                self._add_quantity("guards", count * _count_needed_guards(access.guards) * self.warp_count)
                guards = merge_guards(node.guards, access.guards)
                self.traffic.count_access(access, "load", width, count, guards)
                if access.buffer is None:
                    self._add_loads("direct", access.dtype.bytes, count * to_float64(width), self.loop_runs)
        if node.target.buffer is None:
            issued = trips * compute_issued_share(self.loop_path, node.target, node.nest, node.guards)
            # A reduction without an accumulator loads and stores its output.
            for kind in ("load", "store") if compute.reduction_axes else ("store",):
                self.traffic.count_access(node.target, kind, 1, issued, node.guards)

    def _count_instructions(self, compute: Compute) -> int:
        """Instructions of a body: one for each operation, one more for each `where` (it compares and
        selects), and those that propagate NaN in software."""
        operations = [ex.name_operation(e) for e in list_operations(compute.body)]
        return len(operations) + operations.count("where") + self._count_selects(compute, operations)

    def _count_combine_selects(self, compute: Compute) -> int:
        """Instructions that propagate NaN when a value is combined with an accumulator."""
        return self._count_selects(compute, [compute.combine] if compute.reduction_axes else [])

    def _count_selects(self, compute: Compute, operations: Iterable[str]) -> int:
        if self.limits.nan_extremes or compute.acc_dtype.is_integer:
            return 0
        return _NAN_SELECT_INSTRUCTIONS * sum(operation in ("max", "min") for operation in operations)

    def _count_reduce(self, node: tree.ReduceNode, trips: PopulationValue) -> None:
        """A fused reduction: full warps run along the last axis and combine their lanes by shuffles."""
        compute, shared = node.compute, to_float64(node.staging.warps)
        elements = trips * to_float64(node.buffer.region.size)
        others = multiply_extents(a.extent for a in compute.reduction_axes[:-1])
        extent = to_float64(compute.reduction_axes[-1].extent)
        steps = elements * others * np.ceil(extent / WARP)
        self._add_quantity("fma", elements * others * extent)
        selects, shuffles = self._count_combine_selects(compute), elements * shared * np.log2(WARP)
        instructions = max(self._count_instructions(compute), 1) + selects
        self._add_quantity("operations", steps * instructions + shuffles * selects)
        self._add_quantity("loop_steps", steps)
        self._add_quantity("shuffles", shuffles)
        self._add_quantity("barriers", trips * (shared > 1))
        for access in node.reads.values():
            # A read that does not move along the axis is issued once by each warp.
            moves = compute.reduction_axes[-1].name in access.address.find_variables()
            count = steps if moves else elements * others * shared
            if access.dtype is not find_read_type(access.dtype, compute.acc_dtype):
                self._add_quantity("conversions", count)
            self._add_quantity("guards", count * _count_needed_guards(access.guards))
            self.traffic.count_warp_walk(access, compute.reduction_axes[-1], count, node.buffer.region)
            own = count / self.warp_count
            self._add_loads("direct", access.dtype.bytes, own, own)
        # Lane 0 of each warp stores; where warps share an element, a thread then combines their parts.
        joins = trips * np.ceil(to_float64(node.buffer.region.size) / WARP) * (shared > 1)
        for name in ("shared_store_requests", "shared_store_wavefronts"):
            self._add_quantity(name, elements * shared + joins)
        for name in ("shared_load_requests", "shared_load_wavefronts"):
            self._add_quantity(name, joins * shared)


def _count_needed_guards(guards: tuple[BoundsGuard, ...]) -> PopulationValue:
    """Number of guards that are needed (for a population, by each member)."""
    return sum((to_float64(g.needs_lower_check | g.needs_upper_check) for g in guards), 0.0)
