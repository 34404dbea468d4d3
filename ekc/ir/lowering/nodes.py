"""The tree of a launch: nodes for loops, copies, computes and barriers, and the launch that has them.

`ekc.ir.lowering.lower` derives the tree from a Program. Extents may be vectors (a population).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from math import prod
from typing import Any

import numpy as np

from ekc.ir import expr as ex
from ekc.ir.affine import AffineForm, Extent, max_extent, min_extent
from ekc.ir.compute import Compute, TensorSpec
from ekc.ir.hardware.memory import CACHE_LINE_BYTES, SECTOR_BYTES
from ekc.ir.hardware.mma import MmaInstruction
from ekc.ir.lowering.buffers import BoundsGuard, Buffer, TensorAccess
from ekc.ir.lowering.regions import Region
from ekc.ir.lowering.tensor_tiles import TensorTile
from ekc.ir.program import BLOCK_LEVELS, THREAD_LEVELS, Loop, Nest, Staging


@dataclass(frozen=True, eq=False)
class LoopNode:
    """A serial loop and its body."""

    loop: Loop
    body: tuple[Node, ...]
    must_unroll: bool
    """Whether the loop must be unrolled because its variable indexes registers."""

    @property
    def is_async(self) -> bool:
        """Whether tiles of later iterations are copied by asynchronous copies."""
        return any(isinstance(n, CopyWaitNode) for n in self.body)

    @property
    def copies(self) -> Extent:
        """Iterations that are written out; 1 where their number is left to the compiler."""
        return min_extent(
            self.loop.extent if self.must_unroll else max_extent(self.loop.unroll, 1), self.loop.extent
        )


@dataclass(frozen=True, eq=False)
class StageNode:
    """A copy of a region into a buffer: by all threads (shared), or by each thread of its own tile."""

    staging: Staging
    buffer: Buffer
    source: TensorAccess
    """Source of the element with segment coordinates `#0, #1, ...`."""
    target_address: AffineForm
    """Address of that element in the buffer."""
    vector_segment: int | None
    """Index of the segment whose neighbours are neighbours in the source, None if there is none."""
    producer_reads: dict[ex.Load, TensorAccess] | None = None
    """Reads of the producer's body, where the region is computed and not copied."""
    is_async: bool = False
    """Whether the copy is asynchronous and issued iterations ahead; a `CopyWaitNode` precedes its use."""


@dataclass(frozen=True, eq=False)
class FragmentNode:
    """A copy of a shared region into the registers of a warp, in the layout of a factor of an `mma`."""

    stage: StageNode
    """The copy of the whole region, which gives its meaning: every lane may read the whole region."""
    tile: TensorTile
    source: TensorAccess
    """Access to an element in shared memory, in terms of loops."""
    fragment_loops: tuple[Loop, ...]
    """Loops inside that select one of the fragments, outermost first."""

    @property
    def is_a(self) -> bool:
        """Whether the fragment is of the left factor, which has the rows."""
        return self.stage.staging.tensor == self.tile.a_load.tensor

    @property
    def staging(self) -> Staging:
        """The staging of the copy."""
        return self.stage.staging

    @property
    def instruction(self) -> MmaInstruction:
        """The instruction that multiplies the fragment."""
        assert isinstance(self.tile.instruction, MmaInstruction)
        return self.tile.instruction

    @property
    def registers_per_lane(self) -> int:
        """Registers of each lane for one fragment."""
        return self.instruction.a_registers if self.is_a else self.instruction.b_registers

    @property
    def fragment_count(self) -> Extent:
        """Number of fragments."""
        return prod(x.extent for x in self.fragment_loops)


@dataclass(frozen=True, eq=False)
class ReduceNode:
    """A fused reduction: warps compute each element of a region; lanes split the last reduction axis."""

    staging: Staging
    buffer: Buffer
    """Buffer with one copy for each warp of an element; the first copy gets the result."""
    source: TensorAccess
    """Element of the output with segment coordinates `#0, #1, ...`."""
    target_address: AffineForm
    """Address of that element in the buffer."""
    reads: dict[ex.Load, TensorAccess]
    """Reads of the body, in terms of segment coordinates and reduction axes."""

    @property
    def compute(self) -> Compute:
        """The compute whose reduction this is."""
        assert self.staging.producer is not None
        return self.staging.producer


@dataclass(frozen=True, eq=False)
class InitNode:
    """Initial values of an accumulator, or of the output elements where there is none."""

    buffer: Buffer | None
    region: Region
    target: TensorAccess


@dataclass(frozen=True, eq=False)
class ComputeNode:
    """The statement: combine the value of the body with the accumulator or the output."""

    nest: Nest
    reads: dict[ex.Load, TensorAccess]
    target: TensorAccess
    guards: tuple[BoundsGuard, ...]
    """Guards of reduction indices beyond which reads are not all 0, and of a direct store."""


@dataclass(frozen=True, eq=False)
class SharedFactor:
    """A factor of `wgmma`: a tile that the instruction reads from shared memory."""

    staging: Staging
    """The staging that fills the tile."""
    source: TensorAccess
    """Access to an element of the tile, in terms of loops."""


@dataclass(frozen=True, eq=False)
class MmaNode:
    """A product on tensor cores (`mma` of a warp, `wgmma` of a warpgroup) in place of the innermost loops."""

    tile: TensorTile
    replaced_loops: LoopNode
    """The loops and the statement that the product replaces, which give its meaning."""
    compute: ComputeNode
    """The statement inside `replaced_loops`."""
    a: FragmentNode | SharedFactor
    b: FragmentNode | SharedFactor


@dataclass(frozen=True, eq=False)
class WgmmaGroupNode:
    """Products that a warpgroup issues in sequence, followed by a wait for all of them."""

    body: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class LaneCombineNode:
    """Combine accumulators of the lanes that split a reduction."""

    buffer: Buffer
    reduction_lanes: tuple[Loop, ...]


@dataclass(frozen=True, eq=False)
class WriteNode:
    """Store an accumulator to the output, through the epilogue if there is one."""

    buffer: Buffer
    region: Region
    target: TensorAccess
    """Output element with segment coordinates `#0, #1, ...`."""
    vector: Extent
    vector_segment: int | None
    reduction_lanes: tuple[Loop, ...]
    """Loops over lanes that split a reduction; only lane 0 of each writes."""
    value: ex.Expr
    """The value that is stored: the accumulated element, or the value of the epilogue."""
    reads: dict[ex.Load, TensorAccess]
    """Reads of `value`, in terms of segment coordinates."""
    is_atomic: bool = False
    """Whether the value is added to the output by an atomic addition."""


@dataclass(frozen=True)
class BarrierNode:
    """All threads of the block wait for each other."""


@dataclass(frozen=True, eq=False)
class CopyWaitNode:
    """Each thread waits for its own copies of this iteration's tiles, then all threads for each other.

    After it the tiles of this iteration are complete, and no thread reads those of the previous one.
    """

    loop: Loop


Node = (
    LoopNode
    | StageNode
    | FragmentNode
    | ReduceNode
    | InitNode
    | ComputeNode
    | MmaNode
    | WgmmaGroupNode
    | LaneCombineNode
    | WriteNode
    | BarrierNode
    | CopyWaitNode
)


def walk_with_loops(
    nodes: Sequence[Node], path: tuple[LoopNode, ...] = ()
) -> Iterator[tuple[Node, tuple[LoopNode, ...]]]:
    """Every node with the serial loops around it, outer nodes first."""
    for node in nodes:
        yield node, path
        if isinstance(node, (LoopNode, WgmmaGroupNode)):
            inside = (*path, node) if isinstance(node, LoopNode) else path
            yield from walk_with_loops(node.body, inside)


def walk_nodes(nodes: Sequence[Node]) -> Iterator[Node]:
    """Every node, outer ones first."""
    return (node for node, _ in walk_with_loops(nodes))


@dataclass(frozen=True, eq=False)
class LaunchTree:
    """One launch: a nest with loops bound to blocks and threads, and the body that each thread runs."""

    nest: Nest
    body: tuple[Node, ...]
    buffers: tuple[Buffer, ...]
    tensors: dict[str, TensorSpec]
    is_zero_fill: bool = False
    """Whether the launch only zeroes the output of the next launch, which adds to it."""

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node of the body, outer ones first."""
        return tuple(walk_nodes(self.body))

    def find_bound_loops(self, level: str) -> tuple[Loop, ...]:
        """Loops bound to one hardware index, slowest first."""
        return tuple(x for x in self.nest.loops if x.level == level)

    def compute_level_extent(self, level: str) -> Extent:
        """Number of values of a hardware index."""
        return prod(x.extent for x in self.find_bound_loops(level))

    @cached_property
    def thread_loops(self) -> tuple[Loop, ...]:
        """Every thread loop, fastest first, in the order of the linear thread number."""
        return tuple(x for level in THREAD_LEVELS for x in reversed(self.find_bound_loops(level)))

    @property
    def reduction_lane_stride(self) -> Extent:
        """Difference in thread number of two lanes with neighbouring parts of one reduction."""
        faster = takewhile(lambda x: not x.is_reduction, self.thread_loops)
        return prod(x.extent for x in faster)

    @cached_property
    def block_loops(self) -> tuple[Loop, ...]:
        """Every block loop, fastest first, in the order the hardware starts blocks."""
        return tuple(x for level in BLOCK_LEVELS for x in reversed(self.find_bound_loops(level)))

    @cached_property
    def thread_count(self) -> Extent:
        """Threads in a block."""
        return prod(x.extent for x in self.thread_loops)

    @cached_property
    def block_count(self) -> Extent:
        """Blocks in the grid."""
        return prod(x.extent for x in self.block_loops)

    @property
    def shared_bytes(self) -> Extent:
        """Shared memory of a block."""
        return sum(b.aligned_bytes for b in self.buffers if b.scope == "shared")


def count_statements(nodes: tuple[Node, ...]) -> Extent:
    """Number of statements after unrolling."""
    total: Extent = 0
    for node in nodes:
        if isinstance(node, LoopNode):
            total = total + node.copies * count_statements(node.body)
        elif isinstance(node, FragmentNode):
            total = total + node.fragment_count
        else:
            total = total + 1
    return total


def choose_strip_width(node: StageNode, threads: Extent) -> Extent:
    """Width of a strip in elements: a cache line where rows have several lines and a strip is copied in whole
    rounds, else the whole row. The threads of a block copy a tile asynchronously strip by strip:

        16 lanes a row, 8 rows a round   ->   8 lanes a row, 16 rows a round, then the rest of the rows

    Each thread then copies more vectors of fewer rows. The address of a row and its guard are computed once
    for these vectors, which have constant distances; in a convolution that is most of the address arithmetic.

    It is also the whole row where strips do not pay. A row that begins inside a sector would end in a partial
    sector in every strip. Vectors of a swizzled row have no constant distances, so that each needs an
    address.
    """
    *rows, last = node.buffer.region.segments
    row = last.extent
    if not node.is_async or not rows:
        return row
    line = CACHE_LINE_BYTES // node.buffer.dtype.bytes
    moves = node.buffer.region.size // row * line // node.staging.vector
    is_whole = (row % line == 0) & (moves % threads == 0)
    aligned = _has_aligned_rows(node.source.address, f"#{len(rows)}", node.source.dtype.bytes)
    # In an im2col tile the source address of each row is computed anyway.
    is_plain = np.asanyarray(node.buffer.swizzle) == 1 if node.buffer.region.view is None else True
    return np.where(is_whole & aligned & is_plain, np.minimum(line, row), row)


def _has_aligned_rows(address: AffineForm, last: str, itemsize: int) -> Any:
    """Whether elements along the coordinate `last` are neighbours in memory, and rows begin with a sector."""
    steps = dict(address.terms)
    in_quotient = any(not isinstance(atom, str) and last in atom.find_variables() for atom in steps)
    others = [address.const, *(step for atom, step in address.terms if atom != last)]
    fits: Any = (np.asanyarray(steps.get(last, 0)) == 1) & (not in_quotient)
    for step in others:
        fits = fits & (np.asanyarray(step) * itemsize % SECTOR_BYTES == 0)
    return fits
