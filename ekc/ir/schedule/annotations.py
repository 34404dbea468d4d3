"""Steps that set how loops run: bound, unrolled, in vectors, pipelined, by atomics, on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ekc.ir.affine import Extent, max_extent, min_extent
from ekc.ir.hardware.cp_async import MAX_PIPELINE_STAGES
from ekc.ir.hardware.mma import MMA_INSTRUCTIONS
from ekc.ir.hardware.wgmma import WGMMA_FAMILIES as GROUP_PRODUCTS
from ekc.ir.lowering.memory_access import find_direct_reads
from ekc.ir.lowering.tensor_tiles import check_tile_extents, derive_tensor_tile
from ekc.ir.program import BLOCK_LEVELS, THREAD_LEVELS, Loop, Nest, Program, Staging
from ekc.ir.refusal import at_least, fits, make_unknown_name_error
from ekc.ir.schedule.step import Step, is_vector_width


@dataclass(frozen=True)
class Bind(Step):
    """Run the iterations of a loop on a hardware index, or as a vthread.

    `bind("i.0", "block.y")`::

        for i.0 in 32          ->   block.y i.0 in 32

    Levels: block.x/y/z, thread.x/y/z, vthread (a strided slice of a thread's own tile). Several loops may
    share one index; the innermost of them runs fastest. A reduction loop on thread.x is summed across lanes.
    All such loops are side by side and have together an extent of 2, 4, 8, 16 or 32, in a block of full
    warps. 2, 4, 8 or 16 threads may run faster, if one warp still has all terms of a sum. Rules check that
    for the kernel. A reduction loop on blocks is summed in memory, where `atomic` allows it. Refuses: an
    unknown loop or level, a bound loop, a loop with a staging (except as vthread), a reduction loop on
    another level than thread.x, unless blocks add by atomics.
    """

    kind: ClassVar[str] = "bind"
    loop: str
    level: str

    def apply(self, program: Program) -> Program:
        """See the class."""
        nest = program.find_nest(self.loop, "bind")
        loop = nest.find_loop(self.loop)
        allowed = (*BLOCK_LEVELS, *THREAD_LEVELS, "vthread")
        if self.level not in allowed:
            raise make_unknown_name_error("bind", "level", self.level, allowed)
        if loop.level != "serial":
            raise self.make_error(
                need=f"unbound loop {loop.name}",
                problem=f"loop {loop.name} is bound to {loop.level}",
                remedy="bind another loop",
            )
        shared = THREAD_LEVELS[:1] + (BLOCK_LEVELS if nest.is_atomic else ())
        if loop.is_reduction and self.level not in shared:
            name = nest.compute.output.name
            over_blocks = f', or call atomic("{name}") first' if self.level in BLOCK_LEVELS else ""
            raise self.make_error(
                need=f"a spatial loop for {self.level}",
                problem=f"loop {loop.name} is a reduction, and {self.level} takes spatial loops",
                remedy=f"bind it to thread.x, or leave it serial{over_blocks}",
            )
        if any(s.at == loop.name for s in nest.stagings) and self.level != "vthread":
            raise self.make_error(
                need=f"no staging in {loop.name}",
                problem=f"a staging sits in loop {loop.name}",
                remedy="bind before cache_read",
            )
        new = nest.replace_loop(loop.name, lambda x: replace(x, level=self.level))
        return program.replace_nest(nest, new)


@dataclass(frozen=True)
class Unroll(Step):
    """Write out `factor` iterations of a serial loop (all of them without a factor).

    `unroll("k.1")`::

        for k.1 in 8           ->   for k.1 in 8                unroll

    A loop without this step is not unrolled; `factor=0` leaves the number to the compiler. Estimates before
    compiling take it for 1. Loops that index registers are always unrolled, as registers have no index at
    run time.
    Refuses: an unknown loop, a loop on blocks or threads, a factor below 0.
    """

    kind: ClassVar[str] = "unroll"
    loop: str
    factor: Extent | None = None

    def apply(self, program: Program) -> Program:
        """See the class."""
        nest = program.find_nest(self.loop, "unroll")
        loop = nest.find_loop(self.loop)
        if not loop.is_serial:
            raise self.make_error(
                need="a serial loop",
                problem=f"loop {loop.name} is bound to {loop.level}",
                remedy="unroll a serial loop",
            )
        factor = loop.extent if self.factor is None else min_extent(self.factor, loop.extent)
        requested = 1 if self.factor is None else self.factor
        check = at_least(f"unroll {loop.name}", requested, 0, "as a factor")
        new = nest.replace_loop(loop.name, lambda x: replace(x, unroll=factor))
        return program.replace_nest(nest, new, check)


@dataclass(frozen=True)
class Vectorize(Step):
    """Move the elements of the innermost loop as vectors: 2, 4, 8 or 16 at a time, up to 16 bytes.

    `vectorize("j.1")`::

        for j.0                ->   for j.0
          for j.1 in 4                stage X[i, j.0*4 : 4] -> register[4]     1 x float4
            Y[i, j] = X[i, j]         for j.1 in 4                             vector
                                        Y[i, j] = X.register[j.1]
                                      write Y                                  float4

    Tensors read from global memory with neighbours along the loop are staged in registers as vectors, and the
    result is written as vectors.
    Refuses: a loop that is not innermost, is bound, is a reduction, has a staging, or does not run along the
    output's last axis; an extent that is no vector width.
    """

    kind: ClassVar[str] = "vectorize"
    loop: str

    def apply(self, program: Program) -> Program:
        """See the class."""
        nest = program.find_nest(self.loop, "vectorize")
        loop = nest.find_loop(self.loop)
        self._check_loop(nest, loop)
        width = np.asanyarray(loop.extent)
        legal = (width > 1) & is_vector_width(width)
        rule, near = f"vectorize {loop.name}", "split the loop by 4"
        check = fits(rule, legal, loop.extent, "must be 2, 4, 8 or 16", near, "elements")
        around = [x.name for x in nest.loops[:-1] if x.is_serial]
        stagings = tuple(
            Staging(t, t, "register", around[-1] if around else None, vector=loop.extent)
            for t in _find_contiguous_reads(program, nest.compute.output.name, loop.name)
        )
        new = nest.replace_loop(loop.name, lambda x: replace(x, level="vector", unroll=x.extent))
        new = replace(
            new, stagings=(*new.stagings, *stagings), has_accumulator=True, store_vector=loop.extent
        )
        return program.replace_nest(nest, new, check)

    def _check_loop(self, nest: Nest, loop: Loop) -> None:
        if loop is not nest.loops[-1]:
            inside = nest.loops[-1].name
            raise self.make_error(
                need=f"{loop.name} innermost",
                problem=f"loop {inside} is inside {loop.name}",
                remedy=repr(inside),
            )
        if loop.level != "serial" or loop.is_reduction:
            raise self.make_error(
                need="a serial spatial loop",
                problem=f"loop {loop.name} is not a serial spatial loop",
                remedy="vectorize the innermost spatial loop",
            )
        users = [s.name for s in nest.stagings if s.at == loop.name]
        if users:
            raise self.make_error(
                need=f"no staging in {loop.name}",
                problem=f"{users[0]} sits in loop {loop.name}",
                remedy=f'move it: compute_at("{users[0]}", ...)',
            )
        axis = nest.compute.spatial_axes[-1].name
        if dict(nest.axis_forms[axis].terms).get(loop.name) != 1:
            output = nest.compute.output.name
            raise self.make_error(
                need=f"neighbours in {output} along {loop.name}",
                problem=f"neighbours in {output} run along {axis}, not along {loop.name}",
                remedy=f"vectorize the innermost piece of {axis}",
            )


def _find_contiguous_reads(program: Program, output: str, loop: str) -> list[str]:
    """Tensors that the compute reads from global memory, with neighbours at neighbouring iterations."""
    nest = next(n for n in program.nests if n.compute.output.name == output)
    found = []
    for tensor, forms in find_direct_reads(nest).items():
        last = [dict(read[-1].terms).get(loop, 0) for read in forms]
        others = [loop in f.find_variables() for read in forms for f in read[:-1]]
        if all(isinstance(c, int) and c == 1 for c in last) and not any(others):
            found.append(tensor)
    return found


_STAGE_LIMITS = {"register": (1, 2), "async": (2, MAX_PIPELINE_STAGES)}
"""(fewest, most) stages by way of copying. With one stage nothing overlaps, and a loop that copies through
registers runs as without a pipeline."""


@dataclass(frozen=True)
class Pipeline(Step):
    """Keep `stages` copies of the shared tiles of a loop: the next are fetched while one is used.

    `pipeline("k.0", stages=2)`::

        for k.0                ->   fetch tile 0
          stage A, stage B          for k.0                     pipeline 2
          barrier                     fetch tile k.0 + 1 into registers
          use A, B                    use tile k.0
          barrier                     store tile k.0 + 1 into the other copy
                                      barrier

    `pipeline("k.0", stages=3, copy="async")`::

                               ->   copy tiles 0 and 1, each a group
                                    for k.0                     pipeline 3, async
                                      wait until at most 1 group is in flight, barrier
                                      copy tile k.0 + 2 over tile k.0 - 1, a group
                                      use tile k.0

    Where only wgmma uses a tile, its products are asynchronous too: they start before the copies are issued,
    and are waited for after that.
    Asynchronous copies (cp.async) take no registers and one barrier an iteration. They move 4, 8 or 16 bytes
    at once (an element of 4 bytes where the order changes) and need a target from sm_80 on; rules check that.
    Refuses: an unknown loop, a loop without a shared staging, a tile that is computed on the spot, an unknown
    way to copy, other stages than 1 or 2 (asynchronous: 2 to 6).
    """

    kind: ClassVar[str] = "pipeline"
    loop: str
    stages: Extent = 2
    copy: str = "register"

    def apply(self, program: Program) -> Program:
        """See the class."""
        nest = program.find_nest(self.loop, "pipeline")
        loop = nest.find_loop(self.loop)
        if not any(s.at == loop.name and s.scope == "shared" for s in nest.stagings):
            raise self.make_error(
                need=f"a shared staging in {loop.name}",
                problem=f"loop {loop.name} has no shared staging",
                remedy=f"call cache_read(..., at={loop.name!r}) first",
            )
        if any(s.producer for s in nest.stagings if s.at == loop.name):
            raise self.make_error(
                need="tiles that are copied",
                problem=f"a tile of loop {loop.name} is computed on the spot",
                remedy="leave the loop as it is",
            )
        if self.copy not in _STAGE_LIMITS:
            raise make_unknown_name_error("pipeline", "copy", self.copy, _STAGE_LIMITS, plural="copies")
        least, most = _STAGE_LIMITS[self.copy]
        legal = (np.asanyarray(self.stages) >= least) & (np.asanyarray(self.stages) <= most)
        limit = f"must be {least} or {most}" if most - least == 1 else f"must be {least} to {most}"
        nearest = min_extent(max_extent(self.stages, 2), most)
        check = fits(f"pipeline {loop.name}", legal, self.stages, limit, nearest, "stages")
        new = nest.replace_loop(loop.name, lambda x: replace(x, stages=self.stages, copy=self.copy))
        return program.replace_nest(nest, new, check)


@dataclass(frozen=True)
class Atomic(Step):
    """Add the accumulator of a sum to memory by atomics, so that reduction loops may be bound to blocks.

    `atomic("C")`, and then `bind("k.0", "block.y")`::

        block.x i                ->   launch 1: C[at] = 0
          register C.acc = 0          launch 2: block.y k.0 in 4, block.x i
          for k.0 in 4                            register C.acc = 0
            for k.1 in 16                         for k.1 in 16
              C.acc += A[i, k] * ...                C.acc += A[i, k] * ...
          write C.acc -> C                        add C.acc -> C              atomic

    Unlike `rfactor` it needs no tensor of partial sums; a launch before clears the output. Blocks add in the
    order in which they end, so floating-point results differ from run to run by rounding; integers do not.
    The search does not use this step. Called atomic in Halide; split-K with atomics in libraries. Rules check
    that the sum has an accumulator (`cache_write`) and is added element by element. Refuses: a tensor that no
    compute writes, a tensor that is atomic already, a compute that is no sum, an output of another type than
    the sum (each part would be rounded), computes fused behind the sum.
    """

    kind: ClassVar[str] = "atomic"
    tensor: str

    def apply(self, program: Program) -> Program:
        """See the class."""
        nest = program.find_output_nest(self.tensor, self.kind)
        if nest.is_atomic:
            raise self.make_error(
                need=f"{self.tensor} named once",
                problem=f"{self.tensor} is atomic already",
                remedy="leave the second out",
            )
        if not nest.compute.reduction_axes:
            raise self.make_error(f"a sum {self.tensor}", f"{self.tensor} sums nothing", "leave it out")
        longest = max(nest.compute.reduction_axes, key=lambda a: a.extent)
        self._check_addable(nest, f'rfactor("{longest.name}", ...)')
        return program.replace_nest(nest, replace(nest, is_atomic=True))

    def _check_addable(self, nest: Nest, parts: str) -> None:
        """Refuse an output that is no plain sum of its parts; `parts` is the step to suggest instead."""
        compute = nest.compute
        if compute.combine != "sum":
            raise self.make_error(
                need=f"a sum {self.tensor}",
                problem=f"atomics add parts, and {self.tensor} is a {compute.combine}",
                remedy=f"use {parts}",
            )
        if nest.epilogue is not None:
            raise self.make_error(
                f"{self.tensor} written as it is summed",
                f"{nest.output.name} is fused behind {self.tensor}, and no block knows which is the last",
                f'leave compute_inline("{self.tensor}") out, or {parts} first',
            )
        if compute.output.dtype is not compute.acc_dtype:
            raise self.make_error(
                need=f"{self.tensor} as {compute.acc_dtype}, as it is summed",
                problem=f"{self.tensor} is stored as {compute.output.dtype}, which would round each part",
                remedy=f'use out_dtype="{compute.acc_dtype}", or {parts}',
            )


@dataclass(frozen=True)
class Tensorize(Step):
    """Run the innermost loops as one tensor-core product of a warp (mma) or a warpgroup (wgmma).

    `tensorize("k.2", "mma.m16n8k16")`::

        thread.x i.4 in 8, j.3 in 4         ->   thread.x i.4 in 8, j.3 in 4
        for i.3 in 2                             mma C.acc[..] += A.fragment * B.fragment
          for j.4 in 2
            for k.2 in 16
              C.acc[..] += A.fragment[..] * B.fragment[..]

    `loop` is the reduction loop among them. Epilogue, edges and write stay as before. A warp computes 16 rows
    by 8 columns at once: rows are cut (2, 8) and columns (4, 2), with the 8 and the 4 on thread.x. Both
    factors come from a copy in "fragment" scope, filled from shared memory. Instructions: mma.m16n8k16
    (float16, bfloat16), mma.m16n8k8 (tf32), mma.m16n8k32 (int8), on targets from sm_80 on.

    `tensorize("k.2", "wgmma.m64nNk16")` (float16, bfloat16; sm_90a) is a product of four warps, 64 rows by
    N = 8 to 256 columns::

        thread.y i.3 in 4                   ->   thread.y i.3 in 4
          thread.x i.5 in 8, j.3 in 4              thread.x i.5 in 8, j.3 in 4
            for j.2 in 16                            wgmma.m64n128k16 C.acc[..] += A.shared * B.shared
              for i.4 in 2                           wait for products
                for j.4 in 2
                  for k.2 in 16
                    C.acc[..] += A.shared[..] * B.shared[..]

    Its rows are cut (4, 2, 8), the 4 innermost on thread.y, its columns (N / 8, 4, 2). It reads both factors
    from shared tiles with swizzle=8 and panel=64, filled by asynchronous copies.
    TVM calls it tensorize too, Exo replace.
    Refuses: an unknown loop or instruction, a body that is no sum of products of two tensors, types that the
    instruction does not take, loops or lanes in another order than the instruction has, no accumulator,
    factors that are not in fragments (wgmma: not in shared tiles as above).
    """

    kind: ClassVar[str] = "tensorize"
    loop: str
    instruction: str

    def apply(self, program: Program) -> Program:
        """See the class."""
        nest = program.find_nest(self.loop, "tensorize")
        names = list(dict.fromkeys(p.name for p in (*MMA_INSTRUCTIONS, *GROUP_PRODUCTS)))
        if self.instruction not in names:
            raise make_unknown_name_error("tensorize", "instruction", self.instruction, names)
        new = replace(nest, instruction=self.instruction)
        tile = derive_tensor_tile(new, program.op.tensors)
        if self.loop != tile.depth_loop.name:
            raise self.make_error(
                need="the innermost reduction loop",
                problem=f"loop {self.loop} is not the innermost reduction loop",
                remedy=repr(tile.depth_loop.name),
            )
        return program.replace_nest(nest, new, *check_tile_extents(new, tile))
