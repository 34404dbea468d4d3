"""Warp-wide helpers against the ISA's own pseudocode, fragments against matrix products."""

from __future__ import annotations

import numpy as np
import pytest

from ekc.emulator.numerics.warp import (
    compute_fragment_indices,
    compute_ldmatrix_sources,
    compute_shuffle_source,
    gather_fragments,
    match_any,
    multiply_fragments,
    redux,
    scatter_fragments,
)
from ekc.errors import InvalidInput

LANE = np.arange(32)


def source(mode, lane, b, c):
    """`shfl` as the ISA writes it, for one lane."""
    b, clamp, mask = b & 31, c & 31, c >> 8 & 31
    last, first = (lane & mask) | (clamp & ~mask), lane & mask
    j = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": first | (b & ~mask)}[mode]
    inside = j >= last if mode == "up" else j <= last
    return (j if inside else lane), inside


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shfl_source(mode):
    for c in (0x1F, 0x00, 0x181F, 0x1800, 0x1C1F, 0x1E1F, 0x1007, 0x100F):
        for b in (0, 1, 2, 7, 16, 31, 33):
            lanes, inside = compute_shuffle_source(mode, LANE, np.uint32(b), np.uint32(c))
            expected = [source(mode, lane, b, c) for lane in range(32)]
            assert list(zip(lanes.tolist(), inside.tolist(), strict=True)) == expected
    with pytest.raises(InvalidInput, match="shfl mode"):
        compute_shuffle_source("sideways", LANE, np.uint32(0), np.uint32(0))


def test_butterfly_adds_a_warp():
    value = np.random.default_rng(0).integers(0, 100, (4, 32))
    total = value.copy()
    for step in (16, 8, 4, 2, 1):
        lanes, _ = compute_shuffle_source("bfly", LANE, np.uint32(step), np.uint32(0x1F))
        total = total + total[:, lanes]
    assert (total == value.sum(axis=1, keepdims=True)).all()


MASKS = np.uint32([0xFFFFFFFF, 0x0000FFFF, 0x80000001, 0x00F0F0F0])


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_redux(dtype):
    rng = np.random.default_rng(1)
    value = rng.integers(0, 2**32, (4, 32), dtype=np.uint32).view(dtype)
    for warp, mask in enumerate(MASKS.tolist()):
        held = [x for lane, x in enumerate(value[warp].tolist()) if mask >> lane & 1]
        plain = {"add": sum(held), "min": min(held), "max": max(held)}
        bits = {"and": held[0], "or": held[0], "xor": held[0]}
        for x in held[1:]:
            bits = {"and": bits["and"] & x, "or": bits["or"] | x, "xor": bits["xor"] ^ x}
        for operation, expected in {**plain, **bits}.items():
            result = redux(operation, value, MASKS)
            assert result.dtype == dtype
            assert (int(result[warp]) - expected) % 2**32 == 0
    with pytest.raises(InvalidInput, match="redux operation"):
        redux("mul", value, MASKS)


def test_match_any():
    value = np.array([[lane % 3 for lane in range(32)]], np.uint32)
    expected = [sum(1 << other for other in range(16) if other % 3 == lane % 3) for lane in range(32)]
    assert match_any(value, np.uint32([0xFFFF]))[0].tolist() == expected


WARPS = 7
CASES = [
    (8, ("f32", "f16", "f16", "f32")),
    (16, ("f32", "f16", "f16", "f32")),
    (8, ("f16", "f16", "f16", "f16")),
    (16, ("f16", "f16", "f16", "f16")),
    (8, ("f32", "bf16", "bf16", "f32")),
    (16, ("f32", "bf16", "bf16", "f32")),
    (4, ("f32", "tf32", "tf32", "f32")),
    (8, ("f32", "tf32", "tf32", "f32")),
    (16, ("s32", "s8", "u8", "s32")),
    (32, ("s32", "s8", "s8", "s32")),
    (32, ("s32", "u8", "u8", "s32")),
]


@pytest.mark.parametrize(("depth", "types"), CASES)
def test_mma_is_the_matrix_product(depth, types):
    rng = np.random.default_rng(depth)
    low = 0 if "u8" in types[1:3] else -9
    a, b = (rng.integers(low, 10, (WARPS, *shape)) for shape in ((16, depth), (depth, 8)))
    c = rng.integers(-100, 100, (WARPS, 16, 8))
    registers = [
        gather_fragments(m, name, depth, t) for m, name, t in zip((a, b, c), "abc", types[1:], strict=True)
    ]
    for register, count in zip(registers, (16 * depth, 8 * depth, 128), strict=True):
        assert register.shape[:2] == (WARPS, 32)
        assert register.dtype == np.uint32
        assert count % 32 == 0
    result = multiply_fragments(*registers, f"m16n8k{depth}", types)
    assert (scatter_fragments(result, "d", depth, types[0]) == a @ b + c).all()


def test_fragments_hold_every_element_once():
    for depth, types in CASES:
        for operand, shape, dtype in (
            ("a", (16, depth), types[1]),
            ("b", (depth, 8), types[2]),
            ("c", (16, 8), "f32"),
        ):
            place = compute_fragment_indices(operand, depth, dtype)
            seen = np.zeros(shape, int)
            np.add.at(seen, (place.row, place.column), 1)
            assert (seen == 1).all()


def test_fragments_lie_where_the_isa_says():
    """Rows and columns of lane 13 (group 3, place 1), worked by hand from the ISA's formulas."""
    half = compute_fragment_indices("a", 16, "f16")
    assert half.row[13].tolist() == [3, 3, 11, 11, 3, 3, 11, 11]
    assert half.column[13].tolist() == [2, 3, 2, 3, 10, 11, 10, 11]
    other = compute_fragment_indices("b", 16, "bf16")
    assert (other.row[13].tolist(), other.column[13].tolist()) == ([2, 3, 10, 11], [3] * 4)
    tensor = compute_fragment_indices("a", 8, "tf32")
    assert (tensor.row[13].tolist(), tensor.column[13].tolist()) == ([3, 11, 3, 11], [1, 1, 5, 5])
    assert compute_fragment_indices("b", 8, "tf32").row[13].tolist() == [1, 5]
    byte = compute_fragment_indices("a", 32, "s8")
    assert byte.row[13].tolist() == ([3] * 4 + [11] * 4) * 2
    assert byte.column[13].tolist() == [4, 5, 6, 7] * 2 + [20, 21, 22, 23] * 2
    assert compute_fragment_indices("b", 32, "u8").row[13].tolist() == [4, 5, 6, 7, 20, 21, 22, 23]
    total = compute_fragment_indices("c", 16, "f32")
    assert (total.row[13].tolist(), total.column[13].tolist()) == ([3, 3, 11, 11], [2, 3, 2, 3])
    with pytest.raises(InvalidInput, match=r"mma\.m16n8k16 of tf32"):
        compute_fragment_indices("a", 16, "tf32")


def test_mma_wraps_or_clamps_integers():
    a, b = np.full((1, 16, 32), 100), np.full((1, 32, 8), 100)
    c = np.full((1, 16, 8), 2**31 - 1)
    types = ("s32", "s8", "s8", "s32")
    registers = [
        gather_fragments(m, name, 32, t) for m, name, t in zip((a, b, c), "abc", types[1:], strict=True)
    ]
    wrapped = multiply_fragments(*registers, "m16n8k32", types)
    assert (wrapped.view(np.int32) == 320_000 - 2**31 - 1).all()
    clamped = multiply_fragments(*registers, "m16n8k32", types, satfinite=True)
    assert (clamped.view(np.int32) == 2**31 - 1).all()


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_gives_the_layout_that_mma_wants(count, transposed):
    memory = np.arange(8 * count * 8).reshape(8 * count, 8)
    rows = compute_ldmatrix_sources(count, transposed)
    loaded = memory[rows.lane, rows.column]
    assert loaded.shape == (32, count, 2)
    for index in range(count):
        tile = memory[8 * index : 8 * index + 8]
        tile = tile.T if transposed else tile
        assert (loaded[:, index] == tile.reshape(32, 2)).all()


def test_ldmatrix_x4_loads_operand_a():
    matrix = np.arange(256).reshape(16, 16)
    tiles = [matrix[:8, :8], matrix[8:, :8], matrix[:8, 8:], matrix[8:, 8:]]
    rows, place = compute_ldmatrix_sources(4), compute_fragment_indices("a", 16, "f16")
    loaded = np.concatenate(tiles)[rows.lane, rows.column].reshape(32, 8)
    assert (loaded == matrix[place.row, place.column]).all()
    with pytest.raises(InvalidInput, match="x1, x2, x4"):
        compute_ldmatrix_sources(3)
