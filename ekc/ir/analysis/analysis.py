"""What a Program does, read off its tree: operations, traffic per level, parallelism.

One walk serves a single Program and a population: extents are integers or int64 vectors, products
are taken in float64, and no branch looks at a value. Counts are per block unless the name says
otherwise; requests are warp instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir import expr as ex
from ekc.ir.access import Access, Guard, moved
from ekc.ir.analysis.figures import Array, f64, product
from ekc.ir.analysis.issue import (
    conversions,
    converted_share,
    fetched,
    issued,
    joined_copy,
    kept_read,
    merged,
    read_once,
    written_out,
)
from ekc.ir.analysis.residency import parallelism, reuse
from ekc.ir.analysis.traffic import Traffic, known
from ekc.ir.dtypes import TF32, find_read_type
from ekc.ir.fragment_loads import fit, held, pointed, turns, ways
from ekc.ir.limits import Limits
from ekc.ir.nodes import (
    BarrierNode,
    CombineNode,
    ComputeNode,
    FragmentNode,
    GroupNode,
    InitNode,
    Kernel,
    LoopNode,
    MmaNode,
    Node,
    ReduceNode,
    StageNode,
    WaitNode,
    WriteNode,
)
from ekc.ir.operator import Compute, arithmetic
from ekc.ir.patterns.guards import Lanes, joint, shares
from ekc.ir.patterns.warp import WARP
from ekc.ir.program import Program
from ekc.ir.region import Region
from ekc.ir.swizzle import LINE_BYTES
from ekc.ir.tape.tape import some
from ekc.ir.tensor_core import ROWS
from ekc.ir.tree import kernels
from ekc.ir.warpgroup import STRIP, WARPS

SUMMED = (
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
    "shared_load_requests",
    "shared_load_wavefronts",
    "shared_store_requests",
    "shared_store_wavefronts",
    "shared_load_bytes",
    "global_load_bytes",
    "async_copies",
)
"""Quantities that the walk adds up, per warp or (bytes, fma) per block. An asynchronous copy, one
instruction, is among the requests to load and among those to store."""

_NAN_SELECT = 2
"""Instructions, a comparison and a select, that keep NaN beside a maximum or minimum that drops it."""


def analyse(program: Program, limits: Limits, size: int = 1) -> dict[str, NDArray[np.float64]]:
    """Every quantity as a float64 vector of `size`, summed over launches where that makes sense.

    Occupancy and shape figures are those of the launch with most arithmetic.
    """
    found = quantities(program, limits)
    return {k: np.broadcast_to(np.asanyarray(v, dtype=np.float64), (size,)) for k, v in found.items()}


def quantities(program: Program, limits: Limits) -> dict[str, Array]:
    """What `analyse` gives, a plain number where all members of a population agree."""
    launches = kernels(program)
    results = [_Walk(kernel, limits).run() for kernel in launches]
    main = max(range(len(results)), key=lambda i: launches[i].nest.compute.flops)
    total = dict(results[main])
    for i, other in enumerate(results):
        if i != main:
            for name in ("total_" + n for n in SUMMED):
                total[name] = total[name] + other[name]
            for name in ("l2_bytes", "dram_bytes"):
                total[name] = total[name] + other[name]
    total["launches"] = float(len(results))
    return total


class _Walk:
    """The walk over one launch."""

    def __init__(self, kernel: Kernel, limits: Limits) -> None:
        self.kernel, self.limits = kernel, limits
        self.sums: dict[str, Array] = dict.fromkeys(SUMMED, 0.0)
        self.threads = f64(kernel.threads)
        self.warps = np.ceil(self.threads / WARP)
        self.path: list[LoopNode] = []
        self.traffic = Traffic(kernel, self._add)

    def run(self) -> dict[str, Array]:
        """All figures of the launch."""
        self._visit(self.kernel.body, 1.0)
        blocks = f64(self.kernel.blocks)
        total = {"total_" + name: value * blocks for name, value in self.sums.items()}
        on_device = parallelism(self.kernel, self.limits, self.sums["fma"])
        resident = on_device["resident_blocks"] * self.limits.sms
        return self.sums | total | on_device | reuse(self.kernel, self.sums, resident)

    def _visit(self, nodes: Sequence[Node], trips: Array) -> None:
        for node in nodes:
            match node:
                case LoopNode():
                    self._loop(node, trips)
                case StageNode():
                    self._copies(node, trips)
                case FragmentNode():
                    self._fragment(node, trips)
                case ReduceNode():
                    self._reduce(node, trips)
                case ComputeNode():
                    self._compute(node, trips)
                case MmaNode():
                    self._multiply(node, trips)
                case GroupNode():
                    self._visit(node.body, trips)
                case CombineNode():
                    lanes = product(x.extent for x in node.lanes)
                    shuffles = (
                        trips * f64(node.buffer.elements) * np.log2(np.maximum(lanes, 1.0)) * self.warps
                    )
                    self._add("shuffles", shuffles)
                    self._add("operations", shuffles * self._count_combine_selects(self.kernel.nest.compute))
                case WriteNode():
                    count = trips * f64(node.region.size) / f64(node.vector)
                    self._add("guards", trips * _needed(node.target.guards) * self.warps)
                    cost = conversions(node.buffer.dtype, node.target.dtype)
                    if cost:
                        self._add("conversions", trips * f64(node.region.size) * self.warps * cost)
                    if self.kernel.nest.epilogue is not None:
                        self._epilogue(node, trips * f64(node.region.size))
                    self._write(node.target, node.vector, count, node.region)
                    if node.atomic:
                        # L2 reads what it changes and writes back.
                        self.traffic.touch(node.target, "load", 1, count, node.target.guards, node.region)
                case InitNode() if node.buffer is None:
                    self._write(node.target, 1, trips * f64(node.region.size), node.region)
                case BarrierNode() | WaitNode():
                    self._add("barriers", trips)
                case _:
                    pass

    def _add(self, name: str, value: Array) -> None:
        self.sums[name] = self.sums[name] + value

    def _loop(self, node: LoopNode, trips: Array) -> None:
        extent = f64(node.loop.extent)
        copies = extent if node.written_out else np.minimum(f64(node.loop.unroll), extent)
        self._add("loop_steps", trips * np.where(copies >= extent, 0.0, extent / copies) * self.warps)
        self.path.append(node)
        self._visit(node.body, trips * extent)
        self.path.pop()
        waits = sum(isinstance(n, BarrierNode) for n in node.body)
        if waits and not node.asynchronous:
            # A pipelined loop waits once an iteration and once before the first.
            fewer = trips * (extent + 1 - waits * extent)
            self._add("barriers", np.where(f64(node.loop.pipeline) > 1, fewer, 0.0))

    def _write(self, target: Access, vector: Any, count: Array, region: Region) -> None:
        self.traffic.touch(target, "store", vector, count, target.guards, region)

    def _epilogue(self, node: WriteNode, elements: Array) -> None:
        """What is done to each finished element, and what is read for it."""
        guards = node.target.guards
        runs = elements * shares(guards, known(self.kernel.nest, node.region), self.traffic.lanes).warps
        behind = self.kernel.nest.epilogue or self.kernel.nest.compute
        self._add("operations", runs * self.warps * self._count_instructions(behind))
        for access in node.reads.values():
            if access.buffer is not None:
                continue
            width, share = fetched(node, access), read_once(node, access)
            cost = conversions(access.dtype, find_read_type(access.dtype, self.kernel.nest.compute.acc_dtype))
            if cost:
                self._add("conversions", runs * share * f64(width) * self.warps * cost)
            self._add("guards", runs * share * _needed(access.guards) * self.warps)
            every = joint(guards, access.guards)
            self.traffic.touch(access, "load", width, elements * share, every, node.region)

    def _copies(self, node: StageNode, trips: Array) -> None:
        """A copy: by all threads of the block into shared memory, or by each for itself into registers."""
        if node.buffer.scope == "shared":
            rounds = np.ceil(f64(node.buffer.region.size) / f64(node.staging.vector) / self.threads)
            self._add("guards", trips * rounds * _needed(node.source.guards) * self.warps)
            self.traffic.copy(node, trips)
            return
        joined = joined_copy(node, self.path, self.kernel.nest)
        count = trips * f64(node.buffer.region.size) / f64(joined)
        self._add("guards", count * _needed(node.source.guards) * self.warps)
        cost = conversions(node.source.dtype, node.buffer.dtype)
        if cost:
            self._add("conversions", trips * f64(node.buffer.region.size) * self.warps * cost)
        self.traffic.touch(node.source, "load", joined, count, node.source.guards, node.buffer.region)

    def _fragment(self, node: FragmentNode, trips: Array) -> None:
        """Fragments that each warp takes for itself, matrix by matrix or element by element."""
        count = trips * f64(node.fragments)
        cost = conversions(node.source.dtype, self.kernel.nest.compute.acc_dtype)
        if node.source.dtype is TF32:
            self._add("conversions", count * node.registers * self.warps * cost)
        for across, pair, share in ways(node):
            if some(share):
                width = 1 + pair
                row = moved(node.source, pointed(node, across, pair))
                together: Lanes = {node.tiles[-1].name: 2} if pair else {}
                self.traffic.matrices(row, node.registers * width, count / width * share, together)
        alone = ~fit(node).any
        if some(alone):
            element = moved(node.source, held(node, 0, 0))
            loads = count * node.registers * node.product.each
            self.traffic.touch(element, "load", 1, loads * alone, (), turns=turns(node))

    def _multiply(self, node: MmaNode, trips: Array) -> None:
        """A product on tensor cores; those of a warpgroup count as so many of its warps, and read their
        factors from shared memory, lines at a time."""
        tile = node.tile
        self._add("fma", trips * product(x.extent for x in tile.inner) * self.threads)
        if tile.strips is None:
            self._add("tensor_products", trips * self.warps)
            return
        strips = f64(tile.strips.extent)
        self._add("group_products", trips * self.warps * strips)
        size = tile.product.depth * tile.product.dtype.bytes
        read = (WARPS * ROWS + STRIP * strips) * size * trips * self.warps / WARPS
        self._add("shared_load_bytes", read)
        self._add("shared_load_wavefronts", read / LINE_BYTES)

    def _compute(self, node: ComputeNode, trips: Array) -> None:
        compute = node.nest.compute
        passed = shares(node.guards, node.nest.extents, self.traffic.lanes)
        runs = trips * passed.warps * self.warps
        self._add("fma", trips * passed.lanes * self.threads)
        self._add(
            "operations",
            runs * (max(self._count_instructions(compute), 1) + self._count_combine_selects(compute)),
        )
        self._add("guards", trips * self.warps * _needed(node.guards))
        for access in node.reads.values():
            cost = conversions(access.dtype, find_read_type(access.dtype, compute.acc_dtype))
            if cost:
                share = converted_share(self.path, access, node.nest)
                self._add("conversions", runs * share * cost)
            if access.buffer is None or access.buffer.scope == "shared":
                width = merged(access, written_out(self.path, node.nest))
                count = trips * kept_read(self.path, access, node.nest) / width
                self._add("guards", count * _needed(access.guards) * self.warps)
                self.traffic.touch(access, "load", width, count, joint(node.guards, access.guards))
        if node.target.buffer is None:
            kept = trips * issued(self.path, node.target, node.nest, node.guards)
            # A sum without an accumulator of its own is read, changed and written back.
            for kind in ("load", "store") if compute.reduction else ("store",):
                self.traffic.touch(node.target, kind, 1, kept, node.guards)

    def _count_instructions(self, compute: Compute) -> int:
        """Instructions of a body: one for each operation, one more for each choice, which compares and
        selects, and those that keep NaN in software."""
        operations = [ex.name_operation(e) for e in arithmetic(compute.body)]
        return len(operations) + operations.count("where") + self._count_selects(compute, operations)

    def _count_combine_selects(self, compute: Compute) -> int:
        """Instructions that keep NaN when a value is taken into a reduction."""
        return self._count_selects(compute, [compute.combine] if compute.reduction else [])

    def _count_selects(self, compute: Compute, operations: Iterable[str]) -> int:
        if self.limits.nan_extremes or compute.acc_dtype.integer:
            return 0
        return _NAN_SELECT * sum(operation in ("max", "min") for operation in operations)

    def _reduce(self, node: ReduceNode, trips: Array) -> None:
        """A reduction on the spot: whole warps walk along the last axis, and combine by shuffles."""
        compute, shared = node.compute, f64(node.staging.warps)
        elements = trips * f64(node.buffer.region.size)
        others = product(a.extent for a in compute.reduction[:-1])
        extent = f64(compute.reduction[-1].extent)
        walks = elements * others * np.ceil(extent / WARP)
        self._add("fma", elements * others * extent)
        selects, shuffles = self._count_combine_selects(compute), elements * shared * np.log2(WARP)
        self._add(
            "operations", walks * (max(self._count_instructions(compute), 1) + selects) + shuffles * selects
        )
        self._add("loop_steps", walks)
        self._add("shuffles", shuffles)
        self._add("barriers", trips * (shared > 1))
        for access in node.reads.values():
            # What does not move along the axis is read once by each warp.
            moves = compute.reduction[-1].name in access.address.variables()
            count = walks if moves else elements * others * shared
            if access.dtype is not find_read_type(access.dtype, compute.acc_dtype):
                self._add("conversions", count)
            self._add("guards", count * _needed(access.guards))
            self.traffic.walk(access, compute.reduction[-1], count, node.buffer.region)
        # Lane 0 of each warp stores; where several share an element, a thread then joins their parts.
        joins = trips * np.ceil(f64(node.buffer.region.size) / WARP) * (shared > 1)
        for of in ("shared_store_requests", "shared_store_wavefronts"):
            self._add(of, elements * shared + joins)
        for of in ("shared_load_requests", "shared_load_wavefronts"):
            self._add(of, joins * shared)


def _needed(guards: tuple[Guard, ...]) -> Array:
    """How many of the guards each member of the population needs."""
    total: Array = 0.0
    for g in guards:
        total = total + f64(np.asanyarray(g.below) | np.asanyarray(g.above))
    return total
