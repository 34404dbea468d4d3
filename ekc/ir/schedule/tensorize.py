"""The step that runs the innermost loops of a nest on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ekc.ir.hardware.mma import MMA_INSTRUCTIONS
from ekc.ir.hardware.wgmma import WGMMA_FAMILIES as GROUP_PRODUCTS
from ekc.ir.lowering.tensor_tiles import check_tile_extents, find_tensor_tile
from ekc.ir.program import Program
from ekc.ir.refusal import make_schedule_error, make_unknown_name_error
from ekc.ir.schedule.step import Step


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
        tile = find_tensor_tile(new, program.op.tensors)
        if self.loop != tile.depth_loop.name:
            problem = f"loop {self.loop} is not the innermost reduction loop"
            raise make_schedule_error(
                "tensorize", "the innermost reduction loop", problem, repr(tile.depth_loop.name)
            )
        return program.replace_nest(nest, new, *check_tile_extents(new, tile))
