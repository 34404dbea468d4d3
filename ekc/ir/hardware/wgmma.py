"""Tensor-core products of a warpgroup (wgmma): semantics, register layout, descriptors and PTX.

An instruction multiplies 64 rows by up to 256 columns and adds to the sums in registers of four warps. Each
warp has 16 of the rows. Its lanes have the sums of each strip of 8 columns as in `ekc.ir.hardware.mma` (PTX
ISA, "Register fragments and shared memory matrix layouts" of wgmma.mma_async):

    sums   element e   row 16 * warp + group + 8 * (e / 2 % 2), column 8 * (e / 4) + 2 * place + e % 2

The factors stay in shared memory: a *descriptor* of 64 bits gives the place and layout of a tile, stored in
panels (`ekc.ir.hardware.memory`) and swizzled by 8 chunks. Their rows run along the depth, or across it:

    along     a line has 64 elements of the depth; 8 rows of a (columns of b) are a pattern of 1024 bytes
    across    a line has 64 rows of a (columns of b); 8 elements of the depth are a pattern

The products are asynchronous and run in order. Those that a warpgroup starts together are a group, and the
sums can be used after a wait for it. The products see tiles that threads wrote only after a proxy fence (PTX
ISA, "Async proxy").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ekc.ir.dtypes import BFLOAT16, FLOAT16, DType
from ekc.ir.hardware.memory import SWIZZLE_CHUNKS, SWIZZLE_PATTERN_BYTES
from ekc.ir.hardware.mma import SUMS_PER_LANE, format_register_group

WARPGROUP_WARPS = 4
"""Warps of a warpgroup."""
STRIP_COLUMNS = 8
"""Columns of a strip; a lane has two of them."""
MAX_STRIPS = 32
"""Most strips of one instruction: 256 columns."""
WGMMA_SWIZZLE = SWIZZLE_CHUNKS[-1]
"""Swizzle of a tile that wgmma reads, in chunks: the only layout used here."""
PROXY_FENCE_PTX = "fence.proxy.async.shared::cta;"
"""PTX of the fence after which products behind the next barrier see what threads wrote to shared memory."""
WGMMA_FENCE_PTX = "wgmma.fence.sync.aligned;"
"""PTX of the fence between writes to registers and the products that read them."""
WGMMA_COMMIT_PTX = "wgmma.commit_group.sync.aligned;"
WGMMA_WAIT_PTX = "wgmma.wait_group.sync.aligned 0;"
"""PTX of the wait for all products: then sums can be used and tiles overwritten."""


@dataclass(frozen=True)
class WgmmaFamily:
    """One family of instructions: `c += a @ b` for a of 64 x depth, b of depth x n and c of 64 x n."""

    name: str
    dtype: DType
    """Type of both factors; the sums have its default accumulator type."""
    depth: int
    ptx_types: str
    """PTX types of d, a and b."""

    def format_name(self, strip_count: int) -> str:
        """Name of the instruction with `strip_count` strips: "wgmma.m64n128k16"."""
        return self.name.replace("N", str(STRIP_COLUMNS * strip_count))

    def find_sum_element(self, element: Any) -> tuple[Any, Any, Any]:
        """(strip, half of the rows, column of two) of a sum; warp, group and place give the rest."""
        return element // SUMS_PER_LANE, element // 2 % 2, element % 2


WGMMA_FAMILIES = (
    WgmmaFamily("wgmma.m64nNk16", FLOAT16, 16, "f32.f16.f16"),
    WgmmaFamily("wgmma.m64nNk16", BFLOAT16, 16, "f32.bf16.bf16"),
)
"""Families whose tiles may run along the depth or across it; tf32 and int8 take rows along the depth only."""


@dataclass(frozen=True)
class WgmmaInstruction:
    """An instruction of a family: its width in strips, and the direction of the rows of its tiles."""

    family: WgmmaFamily
    strip_count: int
    is_a_mn_major: bool
    is_b_mn_major: bool

    @property
    def function_name(self) -> str:
        """Name of the function in CUDA text: `wgmma_m64n128k16_float16_along_across`."""
        ways = "_".join("across" if way else "along" for way in (self.is_a_mn_major, self.is_b_mn_major))
        return f"{self.family.format_name(self.strip_count).replace('.', '_')}_{self.family.dtype}_{ways}"

    @property
    def sum_count(self) -> int:
        """Sums of each lane."""
        return SUMS_PER_LANE * self.strip_count

    @property
    def ptx(self) -> str:
        """PTX text; operands from %0 on: the sums, the descriptors of a and b."""
        sums, product = self.sum_count, self.family
        name = product.format_name(self.strip_count).replace(".", ".mma_async.sync.aligned.")
        operands = f"%{sums}, %{sums + 1}, adds, 1, 1, {int(self.is_a_mn_major)}, {int(self.is_b_mn_major)};"
        call = f"{name}.{product.ptx_types} {format_register_group(0, sums)}, {operands}"
        return f"{{ .reg .pred adds; setp.ne.b32 adds, 1, 0; {call} }}"


@dataclass(frozen=True)
class WgmmaDescriptor:
    """A matrix descriptor without the start address (PTX ISA, "Matrix-descriptor format"; CUTLASS)."""

    leading_bytes: int
    """Bytes from one panel to the next where rows run across the depth; otherwise 16, which is not read."""
    stride_bytes: int = SWIZZLE_PATTERN_BYTES
    """Bytes from one pattern to the next in a panel."""

    @classmethod
    def for_tile(cls, is_mn_major: bool, rows: int, line_bytes: int) -> WgmmaDescriptor:
        """The descriptor of a tile in panels of `rows` rows."""
        return cls(rows * line_bytes if is_mn_major else 16)

    @property
    def bits(self) -> int:
        """The 64 bits, with a start address of 0."""
        swizzle_of_128_bytes = 1
        return self.leading_bytes >> 4 << 16 | self.stride_bytes >> 4 << 32 | swizzle_of_128_bytes << 62


def find_wgmma_family(dtype: DType) -> WgmmaFamily | None:
    """The family for factors of a type, if there is one."""
    return next((p for p in WGMMA_FAMILIES if p.dtype is dtype), None)
