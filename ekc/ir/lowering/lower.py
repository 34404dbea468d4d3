"""Derivation of the launches of a Program: trees of loops, copies, computes and barriers with all addresses.

A nest has the loops and the stagings. Everything else follows from it here: the region and layout of each
copy, the accesses that need a guard, the initial values and stores of accumulators, the barriers. Before a
nest that adds to its output atomically comes a launch that zeroes the output. The printer, the interpreter,
the analysis and the code generator all read this tree. Extents may be vectors (a population).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import cast

from ekc.ir import expr as ex
from ekc.ir.affine import AffineForm, Extent, is_any
from ekc.ir.compute import Axis, Compute, TensorSpec
from ekc.ir.dtypes import find_read_type
from ekc.ir.lowering import nodes as tree
from ekc.ir.lowering.buffers import (
    Buffer,
    TensorAccess,
    locate_element,
    locate_part_element,
    make_buffer,
    make_buffer_access,
    make_global_access,
)
from ekc.ir.lowering.fusion import (
    can_use_staging,
    find_epilogue_reads,
    find_fused_reads,
    has_dependence,
    order_by_dependence,
)
from ekc.ir.lowering.memory_access import derive_reduction_guards, map_axes_to_element, to_affine_index
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.lowering.regions import Region, derive_region, make_segment_variables
from ekc.ir.lowering.tensor_tiles import TensorTile, derive_tensor_tile
from ekc.ir.program import THREAD_LEVELS, Loop, Nest, Program, Staging
from ekc.ir.refusal import make_schedule_error

ZERO_FILL_THREADS, ZERO_FILL_VECTOR = 256, 4
"""Threads of a block that zeroes a tensor, and elements that each stores at once if the size allows."""


def make_zero_fill_nest(nest: Nest) -> Nest:
    """A nest that sets every element of the output of `nest` to 0, in the order of memory.

    `C[64, 64]` becomes `C[at] = 0` for `at` in 4096: blocks of 256 threads, 4 elements each.
    """
    spec = nest.output
    vector = ZERO_FILL_VECTOR if spec.elements % ZERO_FILL_VECTOR == 0 else 1
    flat = TensorSpec(spec.name, (spec.elements,), spec.dtype)
    compute = Compute(flat, (Axis("at", spec.elements),), ex.Const(0), "sum", nest.compute.acc_dtype)
    blocks = -(-spec.elements // (ZERO_FILL_THREADS * vector))
    loops = (
        Loop("at.0", "at", blocks, False, "block.x"),
        Loop("at.1", "at", ZERO_FILL_THREADS, False, "thread.x"),
        Loop("at.2", "at", vector, False, "vector"),
    )
    index = AffineForm((("at.0", ZERO_FILL_THREADS * vector), ("at.1", vector), ("at.2", 1)))
    return Nest(compute, loops, {"at": index}, has_accumulator=True, store_vector=vector)


def derive_launches(program: Program) -> tuple[LaunchTree, ...]:
    """The launches of a Program, in order. A launch that adds to its output follows one that zeroes it.

    They are derived once for each Program and stored in its `launches`.
    """
    if program.launches is None:
        trees = (kernel for nest in program.nests for kernel in _derive_nest(nest, program.op.tensors))
        object.__setattr__(program, "launches", tuple(trees))
    return cast(tuple[LaunchTree, ...], program.launches)


def _derive_nest(nest: Nest, tensors: Mapping[str, TensorSpec]) -> Iterator[LaunchTree]:
    if nest.is_atomic:
        zero_fill = make_zero_fill_nest(nest)
        flat = {zero_fill.output.name: zero_fill.output}
        yield replace(_LaunchBuilder(zero_fill, flat).build_launch(), is_zero_fill=True)
    yield _LaunchBuilder(nest, tensors).build_launch()


class _LaunchBuilder:
    """Derives the launch of one nest; has the state that the parts of the derivation share."""

    def __init__(self, nest: Nest, tensors: Mapping[str, TensorSpec]) -> None:
        self.nest = nest
        self.compute = nest.compute
        self.tensors = dict(tensors)
        self.axis_by_loop = nest.axis_by_loop
        self.read_indices = nest.read_forms
        self.store_index = to_affine_index(self.compute.output_element, nest.axis_forms)
        indices = (*self.read_indices.values(), self.store_index)
        self.used_loops = {name for index in indices for form in index for name in form.find_variables()}
        self.serial_loops = [x for x in nest.loops if x.is_serial]
        self.reduction_lanes = tuple(x for x in nest.loops if x.is_thread and x.is_reduction)
        self.tile = derive_tensor_tile(nest, self.tensors) if nest.instruction else None
        self.fragments: dict[str, tree.FragmentNode] = {}
        self.accumulation_start = self._find_accumulation_start()
        self.buffers: dict[str, Buffer] = {s.name: self._make_buffer(s) for s in nest.stagings}
        self.accumulator = self._make_accumulator()

    def build_launch(self) -> LaunchTree:
        root = [s for s in self.nest.stagings if s.at is None]
        body = (*self._build_stages(root), *self._build_nodes(0))
        buffers = tuple(self.buffers.values())
        if self.accumulator:
            buffers += (self.accumulator,)
        return LaunchTree(self.nest, body, buffers, self.tensors)

    def _find_accumulation_start(self) -> int:
        """Index of the serial loop before which sums start: the first reduction, else the vector."""
        reductions = [i for i, x in enumerate(self.serial_loops) if x.is_reduction]
        if self.tile:
            # A product sums whole tiles, so its sums are initialized outside of it.
            return min([*reductions, self._find_first_tile_loop()])
        if reductions or self.compute.reduction_axes:
            return reductions[0] if reductions else 0
        vectors = [i for i, x in enumerate(self.serial_loops) if x.level == "vector"]
        return vectors[0] if vectors else 0

    def _find_first_tile_loop(self) -> int:
        """Index of the first serial loop that a product replaces."""
        return len(self.serial_loops) - (len(self.tile.inner_loops) if self.tile else 0)

    def _find_first_group_loop(self) -> int | None:
        """Index of the serial loop from which `wgmma` are one group: no tile is copied inside of it."""
        if not self.tile or self.tile.warp_loop is None:
            return None
        staged = {s.at for s in self.nest.stagings}
        behind = [i for i, x in enumerate(self.serial_loops, 1) if x.name in staged]
        return max([self.accumulation_start, *behind])

    def _find_inner_loops(self, at: str | None, scope: str) -> frozenset[str]:
        """Loops that run while a staging at `at` stays: the deeper serial ones; for shared memory all thread
        loops too, for fragments those on thread.x."""
        levels = {"shared": THREAD_LEVELS, "fragment": THREAD_LEVELS[:1]}.get(scope, ())
        threads = [x.name for x in self.nest.loops if x.level in levels]
        return frozenset((*self.nest.list_inner_loops(at), *threads))

    def _make_buffer(self, staging: Staging) -> Buffer:
        reads = [form for load, form in self.read_indices.items() if load.tensor == staging.tensor]
        inner, extents = self._find_inner_loops(staging.at, staging.scope), self.nest.extents
        fused_reads = find_fused_reads(self.nest, staging)
        if fused_reads:
            reads, extents = [*reads, *fused_reads], extents | self.nest.fused_reduction_extents
            inner |= frozenset(self.nest.fused_reduction_extents)
        region = derive_region(reads, inner, extents, self.axis_by_loop)
        source = self.nest.find_staging(staging.source)
        order = staging.order or (source.order if source else ()) or tuple(range(len(region.base)))
        copies: Extent = 1
        if staging.at is not None and staging.scope == "shared":
            copies = self.nest.find_loop(staging.at).stages
        # Registers have the type of the arithmetic, so that a float16 is converted once, when it is copied.
        dtype = self.tensors[staging.tensor].dtype
        dtype = find_read_type(dtype, self.compute.acc_dtype) if staging.scope == "register" else dtype
        if staging.producer is not None and staging.producer.reduction_axes:
            copies, dtype = staging.warps, staging.producer.acc_dtype
        layout = order, staging.pad, copies, staging.swizzle, staging.panel
        return make_buffer(staging.name, staging.scope, dtype, region, *layout)

    def _make_accumulator(self) -> Buffer | None:
        if not self.nest.has_accumulator:
            return None
        region, name = self._find_output_region(), f"{self.compute.output.name}.acc"
        order = tuple(range(len(region.base)))
        return make_buffer(name, "register", self.compute.acc_dtype, region, order, 0, 1)

    def _find_output_region(self) -> Region:
        inside = self.serial_loops[self.accumulation_start :]
        inner = frozenset(x.name for x in inside)
        region = derive_region([self.store_index], inner, self.nest.extents, self.axis_by_loop)
        points = prod(x.extent for x in inside if not x.is_reduction)
        if is_any(region.size != points):
            # A hull has elements that other threads write.
            raise make_schedule_error(
                "cache_write",
                f"a region of {self.compute.output.name} without gaps",
                f"fused loops step through an axis of {self.compute.output.name} out of order",
                "split instead of fuse, or fuse loops of different axes",
            )
        return region

    def _build_nodes(self, position: int) -> tuple[tree.Node, ...]:
        """The nodes from serial loop `position` inwards."""
        inside: tuple[tree.Node, ...]
        if self.tile and position == self._find_first_tile_loop():
            inside = (self._build_mma(self.tile),)
        elif position < len(self.serial_loops):
            inside = self._build_loop(position)
        else:
            inside = (self._build_statement(),)
        if position == self._find_first_group_loop():
            inside = (tree.WgmmaGroupNode(inside),)
        if position != self.accumulation_start:
            return inside
        before: tuple[tree.Node, ...] = (self._build_init(),) if self.compute.reduction_axes else ()
        return (*before, *inside, *self._build_finish())

    def _build_mma(self, tile: TensorTile) -> tree.MmaNode:
        """A product, with the loops that it replaces."""
        body: tree.Node = self._build_statement()
        assert isinstance(body, tree.ComputeNode)
        compute = body
        for loop in reversed(self.serial_loops[self._find_first_tile_loop() :]):
            body = tree.LoopNode(loop, (body,), must_unroll=True)
        assert isinstance(body, tree.LoopNode)
        a, b = self._build_factor(tile.a_load), self._build_factor(tile.b_load)
        return tree.MmaNode(tile, body, compute, a, b)

    def _build_factor(self, load: ex.Load) -> tree.FragmentNode | tree.SharedFactor:
        """A factor of a product: a fragment in registers, or a tile in shared memory."""
        if load.tensor in self.fragments:
            return self.fragments[load.tensor]
        staging = [s for s in self.nest.stagings if s.tensor == load.tensor][-1]
        return tree.SharedFactor(staging, self._build_read(load, self.read_indices[load]))

    def _build_fragment(self, stage: tree.StageNode, tile: TensorTile) -> tree.FragmentNode:
        """The fragments that a warp loads from a shared tile, with the loops that select one."""
        staging = stage.staging
        load = tile.a_load if staging.tensor == tile.a_load.tensor else tile.b_load
        forms, source = self.read_indices[load], self.buffers[staging.source]
        access = make_buffer_access(self.tensors[staging.tensor], source, forms, source.region.locate(forms))
        used = {name for form in forms for name in form.find_variables()}
        inner = self._find_inner_loops(staging.at, "register") - {x.name for x in tile.inner_loops}
        tiles = tuple(x for x in self.serial_loops if x.name in inner & used)
        self.fragments[staging.tensor] = tree.FragmentNode(stage, tile, access, tiles)
        return self.fragments[staging.tensor]

    def _build_loop(self, position: int) -> tuple[tree.Node, ...]:
        loop = self.serial_loops[position]
        staged = self._build_stages([s for s in self.nest.stagings if s.at == loop.name])
        shared = any(isinstance(n, tree.BarrierNode) for n in staged)
        last: tuple[tree.Node, ...] = (tree.BarrierNode(),) if shared else ()
        body = (*staged, *self._build_nodes(position + 1), *last)
        node = tree.LoopNode(loop, body, self._needs_unrolling(loop))
        # When it runs again, an asynchronous loop first copies into tiles that other threads may still read.
        needs_barrier = position > 0 and any(isinstance(n, tree.CopyWaitNode) for n in staged)
        return (node, *([tree.BarrierNode()] if needs_barrier else []))

    def _needs_unrolling(self, loop: Loop) -> bool:
        if loop.name not in self.used_loops:
            return False
        in_sums = self.accumulator is not None and loop.name in self.accumulator.region.inner_loops
        tiles = [b for b in self.buffers.values() if b.scope != "shared"]
        return (in_sums and not loop.is_reduction) or any(loop.name in b.region.inner_loops for b in tiles)

    def _build_stages(self, stagings: list[Staging]) -> tuple[tree.Node, ...]:
        """Copies in order of dependence: shared ones, a barrier (or a wait) after them, private ones."""
        shared: list[tree.Node] = []
        unsynchronized: list[Staging] = []
        for s in order_by_dependence(self.nest, [s for s in stagings if s.scope == "shared"]):
            if any(has_dependence(self.nest, f, s) for f in unsynchronized):
                shared.append(tree.BarrierNode())
                unsynchronized = []
            shared.append(self._build_stage(s))
            unsynchronized.append(s)
        private = [self._build_private_stage(s) for s in stagings if s.scope != "shared"]
        return (*shared, *(self._build_wait(n) for n in shared[-1:]), *private)

    def _build_wait(self, last: tree.Node) -> tree.Node:
        """The wait before the shared tiles of a loop are used."""
        if isinstance(last, tree.StageNode) and last.is_async and last.staging.at is not None:
            return tree.CopyWaitNode(self.nest.find_loop(last.staging.at))
        return tree.BarrierNode()

    def _build_private_stage(self, staging: Staging) -> tree.Node:
        """A copy into registers of a thread or fragments of a warp."""
        stage = self._build_stage(staging)
        if staging.scope == "fragment" and self.tile and isinstance(stage, tree.StageNode):
            return self._build_fragment(stage, self.tile)
        return stage

    def _build_stage(self, staging: Staging) -> tree.StageNode | tree.ReduceNode:
        buffer = self.buffers[staging.name]
        spec = self.tensors[staging.tensor]
        coordinates = buffer.region.find_coordinates()
        address = buffer.compute_address(make_segment_variables(buffer.region))
        extents = self._find_extents_with_segments(buffer.region)
        if staging.source != staging.tensor:
            source_buffer = self.buffers[staging.source]
            cell = locate_part_element(source_buffer, buffer.region)
            source = make_buffer_access(spec, source_buffer, coordinates, cell)
            vector_segment = buffer.find_segment(source_buffer.order[-1])
            return tree.StageNode(staging, buffer, source, address, vector_segment)
        source = make_global_access(spec, coordinates, extents)
        produced = None
        if staging.producer is not None:
            axes = map_axes_to_element(staging.producer, coordinates)
            extents = {**extents, **self.nest.fused_reduction_extents}
            produced = {
                x: self._build_fused_read(x.tensor, staging, to_affine_index(x, axes), extents)
                for x in staging.producer.loads
            }
            if staging.producer.reduction_axes:
                return tree.ReduceNode(staging, buffer, source, address, produced)
        segment, is_async = buffer.find_segment(len(spec.shape) - 1), self.nest.is_async(staging)
        return tree.StageNode(staging, buffer, source, address, segment, produced, is_async)

    def _build_fused_read(
        self, tensor: str, user: Staging, index: tuple[AffineForm, ...], extents: Mapping[str, Extent]
    ) -> TensorAccess:
        copies = [s for s in self.nest.stagings if s.tensor == tensor and can_use_staging(self.nest, s, user)]
        if not copies:
            return make_global_access(self.tensors[tensor], index, extents)
        buffer = self.buffers[copies[0].name]
        return make_buffer_access(self.tensors[tensor], buffer, index, locate_element(buffer, index))

    def _find_extents_with_segments(self, region: Region) -> Mapping[str, Extent]:
        """Extents of the loops, and of the segment coordinates of a region."""
        return self.nest.extents | {f"#{i}": s.extent for i, s in enumerate(region.segments)}

    def _build_statement(self) -> tree.ComputeNode:
        reads = {load: self._build_read(load, forms) for load, forms in self.read_indices.items()}
        target = self._build_target()
        guards = derive_reduction_guards(self.nest, self.tensors)
        if self.accumulator is None:
            guards += target.guards
        return tree.ComputeNode(self.nest, reads, target, guards)

    def _build_read(self, load: ex.Load, forms: tuple[AffineForm, ...]) -> TensorAccess:
        spec = self.tensors[load.tensor]
        chain = [s for s in self.nest.stagings if s.tensor == load.tensor]
        if not chain:
            return make_global_access(spec, forms, self.nest.extents)
        buffer = self.buffers[chain[-1].name]
        return make_buffer_access(spec, buffer, forms, buffer.region.locate(forms))

    def _build_target(self) -> TensorAccess:
        output, index = self.compute.output, self.store_index
        if self.accumulator is None:
            return make_global_access(output, index, self.nest.extents)
        return make_buffer_access(output, self.accumulator, index, self.accumulator.region.locate(index))

    def _build_init(self) -> tree.InitNode:
        region = self.accumulator.region if self.accumulator else self._find_output_region()
        extents = self._find_extents_with_segments(region)
        target = make_global_access(self.compute.output, region.find_coordinates(), extents)
        return tree.InitNode(self.accumulator, region, target)

    def _build_finish(self) -> tuple[tree.Node, ...]:
        if self.accumulator is None:
            return ()
        region = self.accumulator.region
        extents = self._find_extents_with_segments(region)
        target = make_global_access(self.nest.output, region.find_coordinates(), extents)
        cell = make_segment_variables(region)
        accumulated = make_buffer_access(self.compute.output, self.accumulator, target.index, cell)
        reads = find_epilogue_reads(self.nest, accumulated, target, self.tensors, extents)
        segment = self.accumulator.find_segment(len(self.store_index) - 1)
        move = self.nest.store_vector, segment, self.reduction_lanes
        value = self.nest.written_value, reads, self.nest.is_atomic
        write = tree.WriteNode(self.accumulator, region, target, *move, *value)
        if not self.reduction_lanes:
            return (write,)
        return tree.LaneCombineNode(self.accumulator, self.reduction_lanes), write
