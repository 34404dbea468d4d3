"""The tree of a Program, derived: loops, stages, computes and barriers, with every address worked out.

A nest says which loops there are and where tensors are staged; this file says what follows: the
region each stage copies, the layout it lands in, which accesses need a guard, where accumulators
start and are written, where threads must wait for each other. The printer, the evaluator, the
analysis and the code generator all read this one tree. Extents may be vectors (a population).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ekc.ir import expr as ex
from ekc.ir.access import Access, Buffer, buffer_access, cell_of, cell_within, global_access, make_buffer
from ekc.ir.clearing import clearing
from ekc.ir.dtypes import find_read_type
from ekc.ir.footprint import index_of, placed
from ekc.ir.inline import reads_at_write
from ekc.ir.linear import Extent, Linear
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
    SharedFactor,
    StageNode,
    WaitNode,
    WriteNode,
    product,
)
from ekc.ir.on_the_spot import feeds, reads_on_the_spot, serves, sources_first
from ekc.ir.operator import TensorSpec
from ekc.ir.program import THREAD_LEVELS, Loop, Nest, Program, Staging
from ekc.ir.reduction_guards import reduction_guards
from ekc.ir.refusal import refuse
from ekc.ir.region import Region, region_of, segment_cell
from ekc.ir.tensor_tile import TensorTile, tensor_tile


def kernels(program: Program) -> tuple[Kernel, ...]:
    """The launches of a Program, in order. One that adds to its output follows one that clears it."""
    return tuple(kernel for nest in program.nests for kernel in _launches(nest, program.op.tensors))


def _launches(nest: Nest, tensors: Mapping[str, TensorSpec]) -> Iterator[Kernel]:
    if nest.atomic:
        before = clearing(nest)
        flat = {before.output.name: before.output}
        yield replace(_Derivation(before, flat).kernel(), clears=True)
    yield _Derivation(nest, tensors).kernel()


class _Derivation:
    """Works one nest out; holds what the parts of the derivation share."""

    def __init__(self, nest: Nest, tensors: Mapping[str, TensorSpec]) -> None:
        self.nest = nest
        self.compute = nest.compute
        self.tensors = dict(tensors)
        self.axis_of = nest.axis_of
        self.reads = {x: index_of(x, nest.forms) for x in ex.loads(self.compute.body)}
        self.store = index_of(self.compute.store, nest.index)
        self.serial = [x for x in nest.loops if x.is_serial]
        self.lanes = tuple(x for x in nest.loops if x.is_thread and x.reduction)
        self.tile = tensor_tile(nest, self.tensors) if nest.instruction else None
        self.fragments: dict[str, FragmentNode] = {}
        self.start = self._start()
        self.buffers: dict[str, Buffer] = {s.name: self._buffer(s) for s in nest.stagings}
        self.accumulator = self._accumulator()

    def kernel(self) -> Kernel:
        root = [s for s in self.nest.stagings if s.at is None]
        body = (*self._stages(root), *self._nodes(0))
        buffers = tuple(self.buffers.values())
        if self.accumulator:
            buffers += (self.accumulator,)
        return Kernel(self.nest, body, buffers, self.tensors)

    def _start(self) -> int:
        """Which serial loop the accumulator starts just outside of: the first reduction, else the vector."""
        if self.tile:
            # A product sums whole tiles, so its sums start outside it.
            outside = [i for i, x in enumerate(self.serial) if x.reduction and x not in self.tile.inner]
            return min([*outside, self._first_inner()])
        reductions = [i for i, x in enumerate(self.serial) if x.reduction]
        if reductions or self.compute.reduction:
            return reductions[0] if reductions else 0
        vectors = [i for i, x in enumerate(self.serial) if x.level == "vector"]
        return vectors[0] if vectors else 0

    def _first_inner(self) -> int:
        """The serial loop at which a product takes over."""
        return len(self.serial) - (len(self.tile.inner) if self.tile else 0)

    def _first_grouped(self) -> int | None:
        """The serial loop from which on products of a warpgroup are one group: no tile comes inside."""
        if not self.tile or self.tile.warps is None:
            return None
        staged = {s.at for s in self.nest.stagings}
        return max([self.start, *(i + 1 for i, x in enumerate(self.serial) if x.name in staged)])

    def _inside(self, at: str | None, scope: str) -> frozenset[str]:
        """The loops that run while a staging at `at` stays: deeper serial ones, for a block all threads, for
        a warp those on thread.x."""
        names = [x.name for x in self.serial]
        deeper = names if at is None else names[names.index(at) + 1 :]
        levels = {"shared": THREAD_LEVELS, "fragment": THREAD_LEVELS[:1]}.get(scope, ())
        threads = [x.name for x in self.nest.loops if x.level in levels]
        return frozenset((*deeper, *threads))

    def _buffer(self, s: Staging) -> Buffer:
        reads = [form for load, form in self.reads.items() if load.tensor == s.tensor]
        inner, extents = self._inside(s.at, s.scope), self.nest.extents
        on_the_spot = reads_on_the_spot(self.nest, s)
        if on_the_spot:
            reads, extents = [*reads, *on_the_spot], extents | self.nest.reduced_inside
            inner |= frozenset(self.nest.reduced_inside)
        region = region_of(reads, inner, extents, self.axis_of)
        source = self.nest.staging(s.source)
        order = s.order or (source.order if source else ()) or tuple(range(len(region.base)))
        copies = self.nest.loop(s.at).pipeline if s.at is not None and s.scope == "shared" else 1
        # Registers hold what arithmetic uses, so a float16 is converted once, when it arrives.
        dtype = self.tensors[s.tensor].dtype
        dtype = find_read_type(dtype, self.compute.acc_dtype) if s.scope == "register" else dtype
        if s.produced_by is not None and s.produced_by.reduction:
            copies, dtype = s.warps, s.produced_by.acc_dtype
        return make_buffer(s.name, s.scope, dtype, region, order, s.pad, copies, s.swizzle, s.panel)

    def _accumulator(self) -> Buffer | None:
        if not self.nest.accumulate:
            return None
        region = self._output_region()
        order = tuple(range(len(region.base)))
        return make_buffer(
            f"{self.compute.output.name}.acc", "register", self.compute.acc_dtype, region, order, 0, 1
        )

    def _output_region(self) -> Region:
        inner = frozenset(x.name for x in self.serial[self.start :])
        region = region_of([self.store], inner, self.nest.extents, self.axis_of)
        points = product(x.extent for x in self.serial[self.start :] if not x.reduction)
        if np.any(np.asanyarray(region.size != points)):
            # A hull would also write elements that other threads own.
            raise refuse(
                "cache_write",
                f"a region of {self.compute.output.name} without gaps",
                "fused loops step through one of its axes out of order",
                "split instead of fuse, or fuse loops of different axes",
            )
        return region

    def _nodes(self, position: int) -> tuple[Node, ...]:
        """The nodes from serial loop `position` inwards."""
        if self.tile and position == self._first_inner():
            inside: tuple[Node, ...] = (self._mma(self.tile),)
        else:
            inside = self._loop(position) if position < len(self.serial) else (self._statement(),)
        if position == self._first_grouped():
            inside = (GroupNode(inside),)
        if position != self.start:
            return inside
        before: tuple[Node, ...] = (self._init(),) if self.compute.reduction else ()
        return (*before, *inside, *self._finish())

    def _mma(self, tile: TensorTile) -> MmaNode:
        """The product, and the loops it stands for."""
        body: Node = self._statement()
        assert isinstance(body, ComputeNode)
        compute = body
        for loop in reversed(self.serial[self._first_inner() :]):
            body = LoopNode(loop, (body,), written_out=True)
        assert isinstance(body, LoopNode)
        return MmaNode(tile, body, compute, self._factor(tile.a), self._factor(tile.b))

    def _factor(self, load: ex.Load) -> FragmentNode | SharedFactor:
        """What holds a factor: a warp, or shared memory."""
        if load.tensor in self.fragments:
            return self.fragments[load.tensor]
        staging = [s for s in self.nest.stagings if s.tensor == load.tensor][-1]
        return SharedFactor(staging, self._read(load, self.reads[load]))

    def _fragment(self, stage: StageNode, tile: TensorTile) -> FragmentNode:
        """What each lane takes of a shared tile, by the loops that the product of a warp runs."""
        staging = stage.staging
        load = tile.a if staging.tensor == tile.a.tensor else tile.b
        forms, source = self.reads[load], self.buffers[staging.source]
        access = buffer_access(self.tensors[staging.tensor], source, forms, source.region.locate(forms))
        used = {name for form in forms for name in form.variables()}
        inside = self._inside(staging.at, "register") - {x.name for x in tile.inner}
        tiles = tuple(x for x in self.serial if x.name in inside & used)
        self.fragments[staging.tensor] = FragmentNode(stage, tile, access, tiles)
        return self.fragments[staging.tensor]

    def _loop(self, position: int) -> tuple[Node, ...]:
        loop = self.serial[position]
        staged = self._stages([s for s in self.nest.stagings if s.at == loop.name])
        shared = any(isinstance(n, BarrierNode) for n in staged)
        last: tuple[Node, ...] = (BarrierNode(),) if shared else ()
        node = LoopNode(loop, (*staged, *self._nodes(position + 1), *last), self._picks_registers(loop))
        # Run again, an asynchronous loop copies at once into tiles that others may still read.
        again = position > 0 and any(isinstance(n, WaitNode) for n in staged)
        return (node, *([BarrierNode()] if again else []))

    def _picks_registers(self, loop: Loop) -> bool:
        buffers = [
            b for b in (*self.buffers.values(), self.accumulator) if b is not None and b.scope != "shared"
        ]
        reads = [f for forms in (*self.reads.values(), self.store) for f in forms]
        used = any(loop.name in f.variables() for f in reads)
        return used and any(
            loop.name in b.region.inner and (b is not self.accumulator or not loop.reduction) for b in buffers
        )

    def _stages(self, stagings: list[Staging]) -> tuple[Node, ...]:
        """Copies in order of need, shared ones first, then a barrier (or a wait) if any is shared."""
        shared: list[Node] = []
        fresh: list[Staging] = []
        for s in sources_first(self.nest, [s for s in stagings if s.scope == "shared"]):
            if any(feeds(self.nest, f, s) for f in fresh):
                shared.append(BarrierNode())
                fresh = []
            shared.append(self._stage(s))
            fresh.append(s)
        private = [self._own(s) for s in stagings if s.scope != "shared"]
        return (*shared, *(self._arrival(n) for n in shared[-1:]), *private)

    def _arrival(self, last: Node) -> Node:
        """What threads do before they use the shared tiles of a loop."""
        if isinstance(last, StageNode) and last.asynchronous and last.staging.at is not None:
            return WaitNode(self.nest.loop(last.staging.at))
        return BarrierNode()

    def _own(self, s: Staging) -> Node:
        """A copy that a thread, or a warp, makes for itself."""
        stage = self._stage(s)
        if s.scope == "fragment" and self.tile and isinstance(stage, StageNode):
            return self._fragment(stage, self.tile)
        return stage

    def _stage(self, s: Staging) -> StageNode | ReduceNode:
        buffer = self.buffers[s.name]
        spec = self.tensors[s.tensor]
        coordinates = buffer.region.coordinates()
        address = buffer.address(segment_cell(buffer.region))
        extents = self._with_segments(buffer.region)
        if s.source != s.tensor:
            source_buffer = self.buffers[s.source]
            source = buffer_access(
                spec, source_buffer, coordinates, cell_within(source_buffer, buffer.region)
            )
            return StageNode(s, buffer, source, address, buffer.segment_of(source_buffer.order[-1]))
        source = global_access(spec, coordinates, extents)
        produced = None
        if s.produced_by is not None:
            axes, extents = placed(s.produced_by, coordinates), {**extents, **self.nest.reduced_inside}
            produced = {
                x: self._read_on_the_spot(x.tensor, s, index_of(x, axes), extents)
                for x in ex.loads(s.produced_by.body)
            }
            if s.produced_by.reduction:
                return ReduceNode(s, buffer, source, address, produced)
        flies = self.nest.asynchronous(s)
        return StageNode(s, buffer, source, address, buffer.segment_of(len(spec.shape) - 1), produced, flies)

    def _read_on_the_spot(
        self, tensor: str, user: Staging, index: tuple[Linear, ...], extents: Mapping[str, Extent]
    ) -> Access:
        copies = [s for s in self.nest.stagings if s.tensor == tensor and serves(self.nest, s, user)]
        if not copies:
            return global_access(self.tensors[tensor], index, extents)
        buffer = self.buffers[copies[0].name]
        return buffer_access(self.tensors[tensor], buffer, index, cell_of(buffer, index))

    def _with_segments(self, region: Region) -> Mapping[str, Extent]:
        """Extents of the loops and of a region's segment coordinates."""
        return self.nest.extents | {f"#{i}": s.extent for i, s in enumerate(region.segments)}

    def _statement(self) -> ComputeNode:
        reads = {load: self._read(load, forms) for load, forms in self.reads.items()}
        target = self._target()
        guards = reduction_guards(self.nest, self.tensors)
        if self.accumulator is None:
            guards += target.guards
        return ComputeNode(self.nest, reads, target, guards)

    def _read(self, load: ex.Load, forms: tuple[Linear, ...]) -> Access:
        spec = self.tensors[load.tensor]
        chain = [s for s in self.nest.stagings if s.tensor == load.tensor]
        if not chain:
            return global_access(spec, forms, self.nest.extents)
        buffer = self.buffers[chain[-1].name]
        return buffer_access(spec, buffer, forms, buffer.region.locate(forms))

    def _target(self) -> Access:
        if self.accumulator is None:
            return global_access(self.compute.output, self.store, self.nest.extents)
        return buffer_access(
            self.compute.output, self.accumulator, self.store, self.accumulator.region.locate(self.store)
        )

    def _init(self) -> InitNode:
        region = self.accumulator.region if self.accumulator else self._output_region()
        target = global_access(self.compute.output, region.coordinates(), self._with_segments(region))
        return InitNode(self.accumulator, region, target)

    def _finish(self) -> tuple[Node, ...]:
        if self.accumulator is None:
            return ()
        region = self.accumulator.region
        extents = self._with_segments(region)
        target = global_access(self.nest.output, region.coordinates(), extents)
        held = buffer_access(self.compute.output, self.accumulator, target.index, segment_cell(region))
        reads = reads_at_write(self.nest, held, target, self.tensors, extents)
        segment = self.accumulator.segment_of(len(self.store) - 1)
        write = WriteNode(
            self.accumulator,
            region,
            target,
            self.nest.store_vector,
            segment,
            self.lanes,
            self.nest.written,
            reads,
            self.nest.atomic,
        )
        return (*([CombineNode(self.accumulator, self.lanes)] if self.lanes else []), write)
