"""Products of a warpgroup (`wgmma`): layouts of the factors in shared memory, and the sums in registers.

Shared memory is seen as chunks of 16 bytes: every layout of the PTX ISA ("Canonical Layouts") keeps the
elements of a chunk together, and so does a swizzle. A chunk holds neighbours along k (K-major), or along the
rows of a and the columns of b (MN-major).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.numerics import warp
from ekc.emulator.numerics.rounding import Array

Index = NDArray[np.int64]
Word = NDArray[np.uint32]

ROWS, CHUNK_BYTES = 64, 16
"""Rows of a and d; bytes of a chunk."""
DEPTH_BYTES = 32
"""Bytes of k that an instruction takes, of every element type."""
SWIZZLE_WIDTHS = (16, 128, 64, 32)
"""Bytes of a line of the swizzle pattern, by the two bits of the descriptor; 16 is no swizzle."""
_ADDRESS_MASK = (1 << 18) - 1


@dataclass(frozen=True)
class WgmmaOperand:
    """One factor in shared memory: 64 rows of a, or the columns of b."""

    element_type: str
    """PTX type of an element, such as "f16"."""
    lines: int
    is_transposed: bool = False
    """Whether the factor is MN-major instead of K-major."""

    @property
    def chunk_elements(self) -> int:
        """Number of elements in a chunk."""
        return {"f16": 8, "bf16": 8, "tf32": 4, "s8": 16}[self.element_type]

    @property
    def depth(self) -> int:
        """Elements along k."""
        return 2 * self.chunk_elements

    @property
    def chunk_count(self) -> int:
        """Chunks of the whole factor."""
        return 2 * self.lines


class MatrixDescriptors(NamedTuple):
    """The fields of some matrix descriptors: bytes, and the swizzle by its two bits."""

    start: Index
    leading: Index
    stride: Index
    base_offset: Index
    swizzle: Index


def decode_descriptors(words: NDArray[np.uint64]) -> MatrixDescriptors:
    """The fields of matrix descriptors."""

    def part(low: int, bits: int) -> Index:
        return ((words >> np.uint64(low)) & np.uint64((1 << bits) - 1)).astype(np.int64)

    return MatrixDescriptors(part(0, 14) << 4, part(16, 14) << 4, part(32, 14) << 4, part(49, 3), part(62, 2))


class ChunkLayout(NamedTuple):
    """Offset of every chunk: `fixed` bytes, and how often the leading and the stride offset are added."""

    fixed: Index
    leading: Index
    stride: Index


@cache
def compute_chunk_layout(operand: WgmmaOperand, swizzle: int) -> ChunkLayout:
    """Chunks in the order (line, half of k) of K-major, and (k, chunk of lines) of MN-major factors."""
    width = SWIZZLE_WIDTHS[swizzle]
    if not operand.is_transposed:
        line, half = np.arange(operand.lines)[:, None], np.arange(2)
        fixed = line % 8 * width + half * CHUNK_BYTES * (width > CHUNK_BYTES)
        return _freeze_layout(fixed, half * (width == CHUNK_BYTES), line // 8)
    k, part = np.arange(operand.depth)[:, None], np.arange(operand.lines // operand.chunk_elements)
    along = width // CHUNK_BYTES
    fixed = k % 8 * width + part % along * CHUNK_BYTES
    if along == 1:
        return _freeze_layout(fixed, k // 8, part)
    return _freeze_layout(fixed, part // along, k // 8)


def _freeze_layout(*arrays: NDArray[np.int_]) -> ChunkLayout:
    rows = [np.array(row, np.int64).ravel() for row in np.broadcast_arrays(*arrays)]
    for row in rows:
        row.flags.writeable = False
    return ChunkLayout(*rows)


def compute_chunk_addresses(operand: WgmmaOperand, descriptors: MatrixDescriptors) -> Index:
    """The shared address of every chunk: (descriptors, chunks). A swizzle acts on the address itself."""
    addresses = np.empty((descriptors.start.size, operand.chunk_count), np.int64)
    for swizzle in np.unique(descriptors.swizzle):
        own = descriptors.swizzle == swizzle
        fixed, leading, stride = compute_chunk_layout(operand, int(swizzle))
        start, lbo, sbo = (f[own, None] for f in (descriptors.start, descriptors.leading, descriptors.stride))
        at = (start + fixed + leading * lbo + stride * sbo) & _ADDRESS_MASK
        addresses[own] = at ^ ((at >> 3) & (SWIZZLE_WIDTHS[swizzle] - CHUNK_BYTES))
    return addresses


def unpack_factor(operand: WgmmaOperand, chunks: Array) -> Array:
    """Chunks (groups, chunks) as matrices in float64 or int64: (groups, lines, depth)."""
    words = np.ascontiguousarray(chunks).view(np.uint32).reshape(len(chunks), -1)
    elements = warp.unpack_registers(words, operand.element_type)
    if operand.is_transposed:
        return elements.reshape(-1, operand.depth, operand.lines).swapaxes(1, 2)
    return elements.reshape(-1, operand.lines, operand.depth)


def multiply_factors(a: Array, b: Array, is_negated: bool) -> Array:
    """Sums over k in the order of the registers: (registers, groups * 128 lanes)."""
    left = a.astype(np.float64)
    with np.errstate(all="ignore"):
        product = np.matmul(-left if is_negated else left, b.astype(np.float64).swapaxes(1, 2))
    # Row 16 w + 8 h + q, column 8 j + 2 p + e: register 4 j + 2 h + e of lane 4 q + p of warp w.
    by_register = product.reshape(-1, 4, 2, 8, product.shape[2] // 8, 4, 2)
    ordered: Array = by_register.transpose(4, 2, 6, 0, 1, 3, 5)
    return ordered.reshape(product.shape[2] // 2, -1)


def add_product(
    product: Array, accumulators: Word, accumulates: Array, sum_type: str, is_saturating: bool
) -> Word:
    """The registers of d after the product, rounded once; what they held counts where `keep` says so."""
    with np.errstate(all="ignore"):
        sums = warp.unpack_registers(accumulators, sum_type)
        if sum_type == "s32":
            product = product.astype(np.int64)
        total = product + sums if np.all(accumulates) else np.where(accumulates, product + sums, product)
        return warp.pack_registers(total, sum_type, satfinite=is_saturating)
