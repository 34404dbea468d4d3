"""What the tree of a launch is made of: loops, stages, computes and barriers, and the launch that holds them.

`ekc.ir.lowering.lower` derives them from a Program. Extents may be vectors (a population).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from ekc.ir import expr as ex
from ekc.ir.affine import AffineForm, Extent
from ekc.ir.compute import Compute, TensorSpec
from ekc.ir.hardware.mma import MmaInstruction
from ekc.ir.lowering.buffers import BoundsGuard, Buffer, TensorAccess
from ekc.ir.lowering.regions import Region
from ekc.ir.lowering.tensor_tiles import TensorTile
from ekc.ir.program import BLOCK_LEVELS, THREAD_LEVELS, Loop, Nest, Staging


@dataclass(frozen=True, eq=False)
class LoopNode:
    """A serial loop and what it repeats."""

    loop: Loop
    body: tuple[Node, ...]
    must_unroll: bool
    """Whether it must be unrolled because its variable picks registers."""

    @property
    def is_async(self) -> bool:
        """Whether its tiles are copied ahead by asynchronous copies."""
        return any(isinstance(n, CopyWaitNode) for n in self.body)


@dataclass(frozen=True, eq=False)
class StageNode:
    """A copy of a region into a buffer, by all threads of the block or by each thread for itself."""

    staging: Staging
    buffer: Buffer
    source: TensorAccess
    """Where the element with segment coordinates `#0, #1, ...` comes from."""
    target_address: AffineForm
    """Where it goes in the buffer."""
    vector_segment: int | None
    """The segment whose neighbours are neighbours in the source."""
    producer_reads: dict[ex.Load, TensorAccess] | None = None
    """The reads of the producer's body, when the region is computed and not copied."""
    is_async: bool = False
    """Whether the copy is issued iterations ahead and lands by itself; a `WaitNode` stands before its use."""


@dataclass(frozen=True, eq=False)
class FragmentNode:
    """A copy of a shared region into the registers of a warp, as the product in `tile` wants a factor."""

    stage: StageNode
    """What it means: every lane may read the whole region."""
    tile: TensorTile
    source: TensorAccess
    """Where an element lies in shared memory, in terms of loops."""
    fragment_loops: tuple[Loop, ...]
    """The loops inside that pick one of the fragments it holds, outermost first."""

    @property
    def is_a(self) -> bool:
        """Whether it is the left factor, which has the rows."""
        return self.stage.staging.tensor == self.tile.a_load.tensor

    @property
    def staging(self) -> Staging:
        """Of the copy."""
        return self.stage.staging

    @property
    def instruction(self) -> MmaInstruction:
        """What it is a factor of."""
        assert isinstance(self.tile.instruction, MmaInstruction)
        return self.tile.instruction

    @property
    def registers_per_lane(self) -> int:
        """Of each lane, for one fragment."""
        return self.instruction.a_registers if self.is_a else self.instruction.b_registers

    @property
    def fragment_count(self) -> Extent:
        """How many it holds."""
        return multiply_extents(x.extent for x in self.fragment_loops)


@dataclass(frozen=True, eq=False)
class ReduceNode:
    """A reduction on the spot: the warps of a block share out the elements of a region (some warps each),
    their lanes walk along the last reduction axis side by side and combine what they have."""

    staging: Staging
    buffer: Buffer
    """One copy for each of the warps that share an element; the first holds the result."""
    source: TensorAccess
    """The element of the output with segment coordinates `#0, #1, ...`."""
    target_address: AffineForm
    """Where it goes in the buffer."""
    reads: dict[ex.Load, TensorAccess]
    """The reads of the body, in segment coordinates and reduction axes."""

    @property
    def compute(self) -> Compute:
        """What is reduced."""
        assert self.staging.producer is not None
        return self.staging.producer


@dataclass(frozen=True, eq=False)
class InitNode:
    """Start values for an accumulator (or, without one, for the output elements themselves)."""

    buffer: Buffer | None
    region: Region
    target: TensorAccess


@dataclass(frozen=True, eq=False)
class ComputeNode:
    """The statement: combine the body into the accumulator or the output."""

    nest: Nest
    reads: dict[ex.Load, TensorAccess]
    target: TensorAccess
    guards: tuple[BoundsGuard, ...]
    """Conditions on reduction indices that no zero-filled read covers, and on a direct store."""


@dataclass(frozen=True, eq=False)
class SharedFactor:
    """A factor that a product of a warpgroup finds by itself: a tile in shared memory."""

    staging: Staging
    """What fills the tile."""
    source: TensorAccess
    """Where an element lies in it, in terms of loops."""


@dataclass(frozen=True, eq=False)
class MmaNode:
    """A product of a warp, or of a warpgroup, on tensor cores, in place of the innermost loops."""

    tile: TensorTile
    replaced_loops: LoopNode
    """What it means: the loops and the statement that it stands for."""
    compute: ComputeNode
    """That statement."""
    a: FragmentNode | SharedFactor
    b: FragmentNode | SharedFactor


@dataclass(frozen=True, eq=False)
class WgmmaGroupNode:
    """Products that a warpgroup starts one after the other; then it waits for all of them."""

    body: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class LaneCombineNode:
    """Sum an accumulator across the lanes that share a reduction."""

    buffer: Buffer
    reduction_lanes: tuple[Loop, ...]


@dataclass(frozen=True, eq=False)
class WriteNode:
    """Copy an accumulator to the output, through the epilogue if there is one."""

    buffer: Buffer
    region: Region
    target: TensorAccess
    """The output element with segment coordinates `#0, #1, ...`."""
    vector: Extent
    vector_segment: int | None
    reduction_lanes: tuple[Loop, ...]
    """Only lane 0 of these writes."""
    value: ex.Expr
    """What is written; the accumulated element itself where no compute was put behind the sum."""
    reads: dict[ex.Load, TensorAccess]
    """The reads of `value`, at segment coordinates too."""
    is_atomic: bool = False
    """Whether it is added to what is there, by atomic additions."""


@dataclass(frozen=True)
class BarrierNode:
    """All threads of the block wait for each other."""


@dataclass(frozen=True, eq=False)
class CopyWaitNode:
    """Each thread waits for its copies of this iteration's tiles, then all threads for each other.

    After it the tiles of this iteration are whole, and nobody reads those of the last one any more.
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


def walk_nodes(nodes: tuple[Node, ...]) -> Iterator[Node]:
    """Every node, outer ones first."""
    for node in nodes:
        yield node
        if isinstance(node, (LoopNode, WgmmaGroupNode)):
            yield from walk_nodes(node.body)


@dataclass(frozen=True, eq=False)
class LaunchTree:
    """One launch: the loops spread over the hardware and the body that each thread runs."""

    nest: Nest
    body: tuple[Node, ...]
    buffers: tuple[Buffer, ...]
    tensors: dict[str, TensorSpec]
    is_zero_fill: bool = False
    """Whether it only begins the output of the next launch, which adds to it."""

    def find_bound_loops(self, level: str) -> tuple[Loop, ...]:
        """The loops on one hardware index, slowest first."""
        return tuple(x for x in self.nest.loops if x.level == level)

    def find_level_extent(self, level: str) -> Extent:
        """How many values a hardware index takes."""
        return multiply_extents(x.extent for x in self.find_bound_loops(level))

    @property
    def thread_loops(self) -> tuple[Loop, ...]:
        """Every thread loop, fastest first, as the linear thread number counts them."""
        return tuple(x for level in THREAD_LEVELS for x in reversed(self.find_bound_loops(level)))

    @property
    def reduction_lane_stride(self) -> Extent:
        """How many threads apart two lanes are that hold neighbouring parts of one sum."""
        faster = takewhile(lambda x: not x.is_reduction, self.thread_loops)
        return multiply_extents(x.extent for x in faster)

    @property
    def block_loops(self) -> tuple[Loop, ...]:
        """Every block loop, fastest first, in the order the hardware starts blocks."""
        return tuple(x for level in BLOCK_LEVELS for x in reversed(self.find_bound_loops(level)))

    @property
    def thread_count(self) -> Extent:
        """Threads in a block."""
        return multiply_extents(x.extent for x in self.thread_loops)

    @property
    def block_count(self) -> Extent:
        """Blocks in the grid."""
        return multiply_extents(x.extent for x in self.block_loops)

    @property
    def shared_bytes(self) -> Extent:
        """Shared memory of a block."""
        total: Extent = 0
        for b in self.buffers:
            if b.scope == "shared":
                total = total + b.aligned_bytes
        return total


def multiply_extents(values: Any) -> Extent:
    """Of extents; 1 where there are none."""
    total: Extent = 1
    for v in values:
        total = total * v
    return total
