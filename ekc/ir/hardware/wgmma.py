"""Products that four warps do together, `wgmma`, as data: what each does, who holds what, and the PTX.

An instruction multiplies 64 rows by up to 256 columns and adds to the sums that its warpgroup holds. Each of
the four warps has 16 of the rows, and its lanes hold their part as those of `ekc.ir.hardware.mma` hold 16 rows
by 8 columns, strip after strip of 8 columns (PTX ISA, "Register fragments and shared memory matrix layouts"
of wgmma.mma_async):

    sums   element e   row 16 * warp + group + 8 * (e / 2 % 2), column 8 * (e / 4) + 2 * place + e % 2

Nobody holds the factors: a *descriptor* of 64 bits says where their tiles lie in shared memory, stored in
panels (`ekc.ir.hardware.memory`) and swizzled by 8 chunks. Their rows run along the depth, or across it:

    along     what lies a row apart: rows of a (columns of b), eight of them a pattern of 1024 bytes
    across    what lies a row apart: the depth, eight of it a pattern; a line has 64 rows of a (columns of b)

The products of a tile run by themselves, one after the other. Those that a warpgroup starts together are a
group, like copies are, and sums may be used when it is waited for. Tiles that threads wrote are seen by these
products only after a fence between the two ways to memory (PTX ISA, "Async proxy").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.dtypes import BFLOAT16, FLOAT16, DType, convert_values, parse_dtype
from ekc.ir.hardware.memory import SWIZZLE_CHUNKS, SWIZZLE_PATTERN_BYTES
from ekc.ir.hardware.mma import SUMS_PER_LANE, format_register_group

WARPGROUP_WARPS = 4
"""Of a warpgroup."""
STRIP_COLUMNS = 8
"""Columns of which a lane has two."""
MAX_STRIPS = 32
"""256 columns."""
WGMMA_SWIZZLE = SWIZZLE_CHUNKS[-1]
"""Chunks that change places in a tile that is read so: the only layout used here."""
PROXY_FENCE_PTX = "fence.proxy.async.shared::cta;"
"""What threads wrote to shared memory is seen by products that start after the next barrier."""
WGMMA_FENCE_PTX = "wgmma.fence.sync.aligned;"
"""Registers are as the products that follow shall find them."""
WGMMA_COMMIT_PTX = "wgmma.commit_group.sync.aligned;"
WGMMA_WAIT_PTX = "wgmma.wait_group.sync.aligned 0;"
"""All products have ended: their sums may be used, and their tiles overwritten."""


@dataclass(frozen=True)
class WgmmaFamily:
    """One family of instructions: `c += a @ b` for a of 64 x depth, b of depth x n and c of 64 x n."""

    name: str
    dtype: DType
    """Of both factors; the sums have its accumulator's."""
    depth: int
    ptx_types: str
    """Of d, a and b, in PTX."""

    def format_name(self, strip_count: int) -> str:
        """Its name for so many strips: "wgmma.m64n128k16"."""
        return self.name.replace("N", str(STRIP_COLUMNS * strip_count))

    def find_sum_element(self, element: int) -> tuple[int, int, int]:
        """(strip, which half of the rows, which of two columns) of a sum; beyond them the lane's warp, group
        and place."""
        return element // SUMS_PER_LANE, element // 2 % 2, element % 2

    def multiply(self, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any]) -> NDArray[Any]:
        """What it means: a [..., 64, depth] and b [..., depth, n] as stored, c [..., 64, n] as summed."""
        acc = parse_dtype(self.dtype.default_accumulator)
        left, right = (convert_values(x, self.dtype, acc) for x in (a, b))
        return np.asarray(c + np.matmul(left, right), acc.numpy_dtype)


WGMMA_FAMILIES = (
    WgmmaFamily("wgmma.m64nNk16", FLOAT16, 16, "f32.f16.f16"),
    WgmmaFamily("wgmma.m64nNk16", BFLOAT16, 16, "f32.bf16.bf16"),
)
"""Those whose tiles may lie either way. (tf32 and int8 come with rows along the depth alone; they are not
here.)"""


@dataclass(frozen=True)
class WgmmaInstruction:
    """One of a family: so many strips wide, rows of its tiles running along the depth or across it."""

    family: WgmmaFamily
    strip_count: int
    is_a_mn_major: bool
    is_b_mn_major: bool

    @property
    def function_name(self) -> str:
        """What the text calls it: `wgmma_m64n128k16_float16_along_across`."""
        ways = "_".join("across" if way else "along" for way in (self.is_a_mn_major, self.is_b_mn_major))
        return f"{self.family.format_name(self.strip_count).replace('.', '_')}_{self.family.dtype}_{ways}"

    @property
    def sum_count(self) -> int:
        """Of each lane."""
        return SUMS_PER_LANE * self.strip_count

    @property
    def ptx(self) -> str:
        """Operands, %0 and on: the sums, the descriptors of a and b."""
        sums, product = self.sum_count, self.family
        name = f"{product.format_name(self.strip_count).replace('.', '.mma_async.sync.aligned.')}.{product.ptx_types}"
        where = f"%{sums}, %{sums + 1}, adds, 1, 1, {int(self.is_a_mn_major)}, {int(self.is_b_mn_major)};"
        return (
            f"{{ .reg .pred adds; setp.ne.b32 adds, 1, 0; {name} {format_register_group(0, sums)}, {where} }}"
        )


@dataclass(frozen=True)
class WgmmaDescriptor:
    """What a descriptor says of a tile but where it begins (PTX ISA, "Matrix-descriptor format"; the comments
    of CUTLASS tell how far apart patterns lie, for both ways)."""

    leading_bytes: int
    """Of a tile whose rows run across the depth: from one panel to the next. Else not read, and 16."""
    stride_bytes: int = SWIZZLE_PATTERN_BYTES
    """From one pattern to the next in a panel."""

    @classmethod
    def for_tile(cls, is_mn_major: bool, rows: int, line_bytes: int) -> WgmmaDescriptor:
        """Of a tile in panels of so many rows."""
        return cls(rows * line_bytes if is_mn_major else 16)

    @property
    def bits(self) -> int:
        """The 64 bits, the beginning left 0."""
        swizzle_of_128_bytes = 1
        return self.leading_bytes >> 4 << 16 | self.stride_bytes >> 4 << 32 | swizzle_of_128_bytes << 62


def find_wgmma_family(dtype: DType) -> WgmmaFamily | None:
    """The family for factors of a type, if there is one."""
    return next((p for p in WGMMA_FAMILIES if p.dtype is dtype), None)
