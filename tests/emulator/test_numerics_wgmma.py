"""Products of a warpgroup in the PTX machine: right and clean, from every layout of the ISA."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ekc.emulator.numerics import wgmma
from tests.emulator.by_hand_warpgroup import PRODUCTS, WIDTHS, Product

OFTEN = [p for n, p in enumerate(PRODUCTS) if n >= 6 * len(WIDTHS) or (n + n // len(WIDTHS)) % 2]
"""Two widths of each kind of product, and all the others."""


@pytest.mark.parametrize(
    "product",
    [pytest.param(p, marks=[pytest.mark.exhaustive] * (p not in OFTEN), id=p.name) for p in PRODUCTS],
)
def test_product_is_right_and_clean(product: Product) -> None:
    report = product.case().check()
    counters = report.counters
    assert counters.warp_instructions["wgmma"] == 2 * 4 * product.groups * product.steps
    factors = 32 * (64 + product.columns)
    assert counters.bytes_by_space["wgmma"] == 2 * product.groups * product.steps * factors
    counts = [one for one in counters.instructions.values() if one.kind == "wgmma"]
    assert sum(one.wavefronts for one in counts) * 128 == counters.bytes_by_space["wgmma"]
    assert sum(one.requests for one in counts) == 2 * product.groups * product.steps
    assert sum(one.conflicts for one in counts) == 0


def test_wrong_swizzle_gives_a_wrong_product() -> None:
    """The cases can fail: the same tile with another swizzle in its descriptor."""
    case = Product("f16", 64, steps=4).case()
    found = case.source.replace("1024, 1)", "1024, 2)", 1)
    assert found != case.source
    _, got, expected = case.run(found)
    assert np.abs(got - expected).max() > 1


SIZES = {"f16": 2, "bf16": 2, "tf32": 4, "s8": 1}


@dataclass(frozen=True)
class Tile:
    """A factor somewhere in shared memory, and what its descriptor says."""

    operand: wgmma.WgmmaOperand
    swizzle: int
    base: int
    leading: int
    stride: int
    moved: int
    """Multiples of 32 bytes by which the start has gone along a line."""

    @property
    def descriptor(self) -> np.ndarray:
        start = self.base + 32 * self.moved
        word = start // 16 | self.leading // 16 << 16 | self.stride // 16 << 32 | self.swizzle << 62
        return np.array([word], np.uint64)

    def place(self, line: int, k: int) -> int:
        """The byte of an element, computed from rows of the pattern and chunks within them."""
        size, width = SIZES[self.operand.element_type], WIDTHS[self.swizzle]
        row, byte = (k, line * size) if self.operand.is_transposed else (line, k * size)
        if not self.swizzle:
            # Blocks of 8 rows of 16 bytes: the leading offset crosses k, the stride the lines.
            other = (self.leading, self.stride) if self.operand.is_transposed else (self.stride, self.leading)
            return self.base + row // 8 * other[0] + byte // 16 * other[1] + row % 8 * 16 + byte % 16
        turned = row % 8 // {128: 1, 64: 2, 32: 4}[width]
        chunk = (2 * self.moved + byte % width // 16) ^ turned
        block = row // 8 * self.stride + byte // width * (self.leading if self.operand.is_transposed else 0)
        return self.base + block + row % 8 * width + chunk * 16 + byte % 16


@st.composite
def tiles(draw: st.DrawFn) -> Tile:
    kind, swizzle = draw(st.sampled_from(sorted(SIZES))), draw(st.sampled_from(sorted(WIDTHS)))
    transposed = SIZES[kind] == 2 and draw(st.booleans())
    operand = wgmma.WgmmaOperand(kind, draw(st.sampled_from([8, 16, 48, 64, 200, 256])), transposed)
    width = WIDTHS[swizzle]
    unit = 8 * width if swizzle else 16
    blocks, gap = draw(st.integers(1, 3)), draw(st.integers(0, 3)) * unit
    # Either offset may be the smaller, and the blocks of one fill up the other.
    small = (128 if not swizzle else unit) + gap
    count = 2 * operand.lines // 8 if not swizzle else max(2, -(-operand.lines * SIZES[kind] // width))
    leading, stride = (
        (small, small * count * blocks) if draw(st.booleans()) else (small * count * blocks, small)
    )
    if swizzle and not transposed:
        leading, stride = draw(st.integers(0, 99)) * 16, small
    moved = draw(st.integers(0, width // 32 - 1)) if swizzle and not transposed else 0
    return Tile(operand, swizzle, draw(st.integers(0, 9)) * unit, leading, stride, moved)


@given(tiles())
def test_descriptor_finds_every_element(tile: Tile) -> None:
    operand, size = tile.operand, SIZES[tile.operand.element_type]
    places = np.array([[tile.place(i, k) for k in range(operand.depth)] for i in range(operand.lines)])
    assume(places.max() < 1 << 18)
    assert len(np.unique(places)) == places.size
    fields = wgmma.decode_descriptors(tile.descriptor)
    memory = np.zeros(1 << 18, np.uint8)
    values = np.random.default_rng(3).integers(-100, 100, places.shape)
    dtype = {"f16": np.float16, "bf16": np.float32, "tf32": np.float32, "s8": np.int8}[operand.element_type]
    raw = values.astype(dtype).view(np.uint8).reshape(*places.shape, -1)[..., -size:]
    for byte in range(size):
        memory[places + byte] = raw[..., byte]
    chunks = memory.view(np.complex128)[wgmma.compute_chunk_addresses(operand, fields) // 16]
    np.testing.assert_array_equal(wgmma.unpack_factor(operand, chunks)[0], values)


def test_layouts_match_the_examples_of_the_isa() -> None:
    """PTX ISA, "Strides": exact layouts with the offsets that their descriptors hold, before the swizzle."""
    tf32, bf16 = wgmma.WgmmaOperand("tf32", 16), wgmma.WgmmaOperand("bf16", 16, True)
    line, k = np.arange(16)[:, None], 4 * np.arange(2)
    plain = wgmma.compute_chunk_layout(tf32, 0)
    found = plain.fixed + plain.leading * 64 * 4 + plain.stride * 32 * 4
    np.testing.assert_array_equal(found.reshape(16, 2), (line % 8 * 4 + line // 8 * 32 + k // 4 * 64) * 4)
    turned = wgmma.compute_chunk_layout(tf32, 3)
    found = turned.fixed + turned.stride * 64 * 4
    np.testing.assert_array_equal(found.reshape(16, 2), (line % 8 * 8 + line // 8 * 64 + k) * 4)
    k, n = np.arange(16)[:, None], 8 * np.arange(2)
    interleaved = wgmma.compute_chunk_layout(bf16, 0)
    found = interleaved.fixed + interleaved.leading * 128 * 2 + interleaved.stride * 64 * 2
    np.testing.assert_array_equal(found.reshape(16, 2), (n // 8 * 64 + k % 8 * 8 + k // 8 * 128) * 2)
    wide = wgmma.compute_chunk_layout(wgmma.WgmmaOperand("bf16", 64, True), 2)
    n = 8 * np.arange(8)
    found = wide.fixed + wide.leading * 256 * 2 + wide.stride * 512 * 2
    expected = (n // 8 % 4 * 8 + n // 32 * 256 + k % 8 * 32 + k // 8 * 512) * 2
    np.testing.assert_array_equal(found.reshape(16, 8), expected)
