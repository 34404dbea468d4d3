"""Fused multiply-add against exact rational arithmetic; float16, bf16 and tf32, many of them whole."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from ekc.emulator.numerics.fma import (
    add16,
    add16x2,
    bf16_to_f32,
    f32_to_bf16,
    fma16,
    fma16x2,
    fma32,
    fma_bf16,
    fma_bf16x2,
    mul16,
    mul16x2,
    pack_halves,
    pack_words,
    sub16,
    sub16x2,
    tf32_round,
)
from ekc.emulator.numerics.rounding import flush

SINGLE = (24, -149, 128)
HALF = (11, -24, 16)
BRAIN = (8, -133, 128)
NAN = 0x7FFFFFFF


def round_fraction(value: Fraction, shape: tuple[int, int, int], mode: str = "rn") -> float:
    """A nonzero rational number rounded once to (digits, exponent of the last subnormal bit, overflow)."""
    digits, least, most = shape
    size, negative = abs(value), value < 0
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - digits + 1, least)
    count, rest = divmod(size, unit)
    away = {"rz": False, "rm": negative, "rp": not negative}.get(mode, False) and rest > 0
    if mode == "rn":
        away = 2 * rest > unit or (2 * rest == unit and count % 2 == 1)
    result = (count + away) * unit
    limit = Fraction(2) ** most
    if result >= limit:
        stays = mode == "rz" or (mode == "rm" and not negative) or (mode == "rp" and negative)
        result = limit - Fraction(2) ** (most - digits) if stays else math.inf
    return -float(result) if negative else float(result)


def reference(a, b, c, shape, mode="rn"):
    """float64 values that the format holds, one by one; zero sums follow IEEE 754."""
    results = []
    for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)):
            results.append(x * y + z)
            continue
        total = Fraction(x) * Fraction(y) + Fraction(z)
        if total:
            results.append(round_fraction(total, shape, mode))
        else:
            same = math.copysign(1, x) * math.copysign(1, y) == math.copysign(1, z) and not (x * y or z)
            results.append(math.copysign(0.0, z) if same else -0.0 if mode == "rm" else 0.0)
    return np.array(results)


def same_bits(result, expected):
    """Equal bit for bit; every NaN is the canonical one."""
    word = np.uint32 if result.dtype == np.float32 else np.uint16
    canonical = NAN if word is np.uint32 else 0x7FFF
    with np.errstate(all="ignore"):
        wanted = np.where(np.isnan(expected), canonical, expected.astype(result.dtype).view(word))
    np.testing.assert_array_equal(result.view(word), wanted)


def any_bits(rng, count):
    return rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)


@pytest.fixture(autouse=True)
def quiet():
    """The references meet NaN, overflow and division by zero on purpose."""
    with np.errstate(all="ignore"):
        yield


def draw_near(rng, count, low, high):
    size = np.exp2(rng.uniform(low, high, count)) * rng.choice([-1, 1], count)
    return size.astype(np.float32)


def draw_sizes(*bounds):
    """Numbers of a triple within powers of two."""
    return lambda rng, count: [draw_near(rng, count, *b) for b in bounds]


def draw_cancelling(rng, count, nearly=False):
    a, b, near = draw_sizes(*[(-2, 2)] * 3)(rng, count)
    return [a, b, np.nextafter(-(a * b), near) if nearly else -(a * b)]


def draw_subnormal_ties(rng, count):
    """The product is slightly above or below half of the last bit of a subnormal addend."""
    above, below = (rng.integers(-3, 4, (2, count)) * 2.0**-23 + 1) * 2.0**-75
    addend = draw_near(rng, count, -149, -125)
    return [above.astype(np.float32), (below * rng.choice([-1, 1], count)).astype(np.float32), addend]


def draw_ties(rng, count):
    odd = 2 * rng.integers(2**11, 2**12, count) + 1
    other = rng.integers(2**11, 2**12, count) * 2 + 1
    tiny = rng.choice([0.0, 1e-30, -1e-30, 2.0**-149, -(2.0**-149)], count)
    return [odd.astype(np.float32), other.astype(np.float32), tiny.astype(np.float32)]


KINDS = {
    "any bits": lambda rng, count: [any_bits(rng, count) for _ in range(3)],
    "alike": draw_sizes(*[(-2, 2)] * 3),
    "cancel": draw_cancelling,
    "nearly cancel": lambda rng, count: draw_cancelling(rng, count, nearly=True),
    "subnormal": draw_sizes((-80, -60), (-80, -60), (-149, -125)),
    "subnormal ties": draw_subnormal_ties,
    "overflow": draw_sizes((63.9, 64.01), (63.9, 64.01), (90, 128)),
    "distant": draw_sizes((0, 20), (0, 20), (-149, 100)),
    "ties": draw_ties,
}


def draw_triples(kind, count):
    return KINDS[kind](np.random.default_rng(sum(map(ord, kind))), count)


@pytest.mark.parametrize("kind", KINDS)
def test_fma32_is_exact_to_nearest(kind):
    a, b, c = draw_triples(kind, 13_000)
    same_bits(fma32(a, b, c), reference(a, b, c, SINGLE))


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("kind", KINDS)
def test_fma32_is_exact_in_the_other_modes(kind, mode):
    a, b, c = draw_triples(kind, 2_000)
    same_bits(fma32(a, b, c, mode=mode), reference(a, b, c, SINGLE, mode))


SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0**-149, -(2.0**-149), 2.0**-126, 3.4028235e38],
    np.float32,
)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_fma32_of_every_special_triple(mode):
    a, b, c = (grid.ravel() for grid in np.meshgrid(SPECIAL, SPECIAL, SPECIAL, indexing="ij"))
    same_bits(fma32(a, b, c, mode=mode), reference(a, b, c, SINGLE, mode))


def flush_subnormals(value):
    return np.where(np.abs(value) < 2.0**-126, np.copysign(np.float32(0), value), value)


@pytest.mark.parametrize("kind", ["subnormal", "any bits", "alike"])
def test_fma32_flushes_operands_and_result(kind):
    a, b, c = draw_triples(kind, 13_000)
    expected = reference(flush_subnormals(a), flush_subnormals(b), flush_subnormals(c), SINGLE).astype(
        np.float32
    )
    same_bits(fma32(a, b, c, ftz=True), flush_subnormals(expected))


def test_fma32_broadcasts_and_writes_in_place():
    a, b, c = draw_triples("ties", 40_000)
    expected = fma32(a, b, c)
    out = c.copy()
    assert fma32(a, b, out, out=out) is out
    np.testing.assert_array_equal(out, expected)
    spaced = np.zeros(80_000, np.float32)
    fma32(a, b, c, out=spaced[::2])
    np.testing.assert_array_equal(spaced[::2], expected)
    rows = fma32(a.reshape(200, 200), b[:200], np.float32(0.5))
    np.testing.assert_array_equal(
        rows, fma32(a, np.tile(b[:200], 200), np.full(40_000, 0.5)).reshape(200, 200)
    )


ALL = np.arange(65536, dtype=np.uint32).astype(np.uint16)


@pytest.mark.parametrize(
    "other",
    [
        0x0001,
        0x7E00,
        *(pytest.param(x, marks=pytest.mark.exhaustive) for x in (0x3C01, 0x8400, 0x7BFF, 0x7C00, 0x2E66)),
    ],
)
def test_add16_and_mul16_of_every_half(other):
    a, b = ALL.view(np.float16), np.full(65536, other, np.uint16).view(np.float16)
    one, minus_zero = np.ones(65536), np.full(65536, -0.0)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    same_bits(add16(a, b), reference(wide_a, one, wide_b, HALF))
    sign = np.copysign(1.0, wide_a) * np.copysign(1.0, wide_b)
    same_bits(mul16(a, b), reference(wide_a, wide_b, np.copysign(minus_zero, sign), HALF))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_fma16_is_exact(seed):
    rng = np.random.default_rng(seed)
    a, b, c = (rng.permutation(ALL).view(np.float16) for _ in range(3))
    if seed:
        c = (c.view(np.uint16) & 0x83FF | (0x1000 if seed == 1 else 0)).astype(np.uint16).view(np.float16)
    expected = reference(*(x.astype(np.float64) for x in (a, b, c)), HALF)
    same_bits(fma16(a, b, c), expected)
    packed = [x.view(np.uint32) for x in (a, b, c)]
    same_bits(fma16x2(*packed).view(np.float16), expected)


def test_packed_halves_do_both():
    rng = np.random.default_rng(5)
    a, b = (rng.permutation(ALL).view(np.uint32) for _ in range(2))
    for packed, plain in ((add16x2, add16), (mul16x2, mul16), (sub16x2, sub16)):
        expected = plain(a.view(np.float16), b.view(np.float16)).view(np.uint16)
        np.testing.assert_array_equal(packed(a, b).view(np.uint16), expected)


def test_packing_puts_the_first_low():
    low, high = np.uint16([0x3C00, 0x0001]), np.uint16([0xBC00, 0x8000])
    assert pack_words(low, high).tolist() == [0xBC003C00, 0x80000001]
    assert pack_halves(low.view(np.float16), high.view(np.float16)).tolist() == [0xBC003C00, 0x80000001]


def test_flush_leaves_its_operand():
    value = np.float32([2.0**-127, -(2.0**-149), 2.0**-126, np.inf, -0.0])
    bits = value.view(np.uint32).tolist()
    assert flush(value).view(np.uint32).tolist() == [0, 0x80000000, *bits[2:]]
    assert value.view(np.uint32).tolist() == bits


def test_fma_bf16_is_exact():
    rng = np.random.default_rng(7)
    words = [rng.permutation(ALL) for _ in range(3)]
    wide = [bf16_to_f32(word).astype(np.float64) for word in words]
    expected = reference(*wide, BRAIN)
    result = fma_bf16(*words)
    nan = np.isnan(expected)
    assert (result[nan] == 0x7FFF).all()
    np.testing.assert_array_equal(bf16_to_f32(result)[~nan], expected[~nan])


def test_bf16_goes_there_and_back():
    wide = bf16_to_f32(ALL)
    assert (wide.view(np.uint32) == ALL.astype(np.uint32) << 16).all()
    back = f32_to_bf16(wide)
    np.testing.assert_array_equal(back[~np.isnan(wide)], ALL[~np.isnan(wide)])
    assert (back[np.isnan(wide)] == 0x7FFF).all()


def test_tf32_rounds_ties_away_from_zero():
    bits = np.array(
        [0x3F800FFF, 0x3F801000, 0xBF801000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x00001000], np.uint32
    )
    wanted = [0x3F800000, 0x3F802000, 0xBF802000, 0x7F800000, 0x7F800000, NAN, 0x00002000]
    assert tf32_round(bits.view(np.float32)).view(np.uint32).tolist() == wanted


def test_fma_bf16x2_does_both():
    rng = np.random.default_rng(9)
    words = [rng.permutation(ALL) for _ in range(3)]
    packed = fma_bf16x2(*(word.view(np.uint32) for word in words))
    np.testing.assert_array_equal(packed.view(np.uint16), fma_bf16(*words))
