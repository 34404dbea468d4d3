"""`cvt` against exact integers and rationals, the approximations against float64."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from ekc.emulator.numerics.approx import (
    cos_approx,
    div_approx,
    div_full,
    div_ieee,
    ex2_approx,
    lg2_approx,
    rcp_approx,
    rcp_ieee,
    rsqrt_approx,
    sin_approx,
    sqrt_approx,
    sqrt_ieee,
    tanh_approx,
)
from ekc.emulator.numerics.convert import NUMPY_TYPES, cvt
from ekc.emulator.numerics.fma import bf16_to_f32
from ekc.errors import InvalidInput

INTEGERS = ("s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64")
BITS = {"f16": 16, "f32": 32, "f64": 64}


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


def floats(source):
    """All halves; of the wider floats any bits, and numbers around the ends of every integer type."""
    if source in ("f16", "bf16"):
        return np.arange(65536, dtype=np.uint32).astype(np.uint16).view(NUMPY_TYPES[source])
    dtype, rng = NUMPY_TYPES[source], np.random.default_rng(1)
    any_bits = rng.integers(0, 2**64, 3000, dtype=np.uint64).view(dtype)
    ends = np.array([2.0**k for k in range(66)], dtype)
    ends = np.concatenate([ends, np.nextafter(ends, dtype.type(0)), np.nextafter(ends, dtype.type(np.inf))])
    small = (rng.integers(-600, 600, 3000) / 4).astype(dtype)
    return np.concatenate([any_bits, ends, -ends, small, np.array([np.nan, np.inf, -np.inf, -0.0], dtype)])


def as_floats(value, source):
    return (bf16_to_f32(value) if source == "bf16" else value).astype(np.float64).tolist()


WHOLE = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


@pytest.mark.parametrize("rounding", WHOLE)
@pytest.mark.parametrize("source", ["f16", "bf16", "f32", "f64"])
def test_float_to_integer_clamps_and_knows_nan(source, rounding):
    value = floats(source)[:: 5 if source in ("f16", "bf16") else 1]
    wide = as_floats(value, source)
    for target in INTEGERS:
        bounds = np.iinfo(NUMPY_TYPES[target])
        low, high = int(bounds.min), int(bounds.max)
        nothing = (low or 1 << (bounds.bits - 1)) if source == "f64" or bounds.bits == 64 else 0
        expected = [
            nothing if math.isnan(x) else (low if x < 0 else high) if math.isinf(x) else
            min(max(WHOLE[rounding](x), low), high)
            for x in wide
        ]  # fmt: skip
        result = cvt(value, source, target, rounding)
        assert result.dtype == NUMPY_TYPES[target]
        assert result.tolist() == expected


def integers(source):
    dtype, rng = NUMPY_TYPES[source], np.random.default_rng(2)
    bounds = np.iinfo(dtype)
    drawn = rng.integers(bounds.min, bounds.max, 1500, dtype=dtype, endpoint=True)
    fewer = drawn >> rng.integers(0, bounds.bits, 1500).astype(dtype)
    ends = np.array([bounds.min, bounds.max, 0, 1, bounds.max - 1], dtype)
    halfway = np.array([(2 * k + 1) << e for k in (2**11, 2**24, 2**53) for e in (0, 1)
                        if (2 * k + 1) << e <= bounds.max], dtype)  # fmt: skip
    return np.concatenate([drawn, fewer, ends, halfway, halfway + dtype.type(1), halfway - dtype.type(1)])


def bracket(exact, nearest, dtype):
    """Is this the nearest value: no neighbour is closer, and of two as close it is the even one?"""
    step = [float(np.nextafter(dtype.type(nearest), dtype.type(side))) for side in (-np.inf, np.inf)]
    own = abs(exact - Fraction(nearest))
    for other in step:
        if math.isinf(other):
            continue
        away = abs(exact - Fraction(other))
        word = int(np.array(nearest, dtype).view(f"u{dtype.itemsize}"))
        assert own < away or (own == away and word % 2 == 0)


@pytest.mark.parametrize("target", ["f16", "f32", "f64"])
@pytest.mark.parametrize("source", INTEGERS)
def test_integer_to_float_rounds_once(source, target):
    value, dtype = integers(source), NUMPY_TYPES[target]
    nearest = cvt(value, source, target)
    for exact, got in zip(value.tolist(), nearest.tolist(), strict=True):
        if math.isfinite(got):
            bracket(Fraction(exact), got, dtype)
        else:
            assert abs(exact) >= 65520
    down, up, in_ = (cvt(value, source, target, mode).tolist() for mode in ("rm", "rp", "rz"))
    for exact, low, high, zero in zip(value.tolist(), down, up, in_, strict=True):
        assert low <= exact <= high
        assert low == high or math.isclose(float(np.nextafter(dtype.type(low), dtype.type(np.inf))), high)
        assert zero == (low if exact > 0 else high)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(("source", "target"), [("f32", "f16"), ("f64", "f16"), ("f64", "f32")])
def test_narrowing_floats_rounds_once(source, target, mode):
    value, dtype = floats(source), NUMPY_TYPES[target]
    value = np.concatenate([value, (value.astype(np.float64) * 2.0**-20).astype(value.dtype)])
    got = cvt(value, source, target, mode)
    for exact, result in zip(value.tolist(), got.tolist(), strict=True):
        if math.isnan(exact):
            assert math.isnan(result)
        elif math.isinf(exact):
            assert result == exact
        elif mode == "rn":
            if math.isfinite(result):
                bracket(Fraction(exact), result, dtype)
        else:
            down = mode == "rm" or (mode == "rz" and exact > 0)
            other = float(np.nextafter(dtype.type(result), dtype.type(np.inf if down else -np.inf)))
            assert result <= exact < other if down else other < exact <= result
            assert math.copysign(1, result) == math.copysign(1, exact)
    word = got.view(f"u{dtype.itemsize}")
    assert set(word[np.isnan(got)].tolist()) == {{2: 0x7FFF, 4: 0x7FFFFFFF}[dtype.itemsize]}


MORE_HALVES = {("f16", "rm"), ("f16", "rp")}


@pytest.mark.parametrize(
    ("source", "mode"),
    [
        pytest.param(source, mode, marks=[pytest.mark.exhaustive] * ((source, mode) in MORE_HALVES))
        for source in ("f32", "f64", "f16", "s32", "u64")
        for mode in ("rn", "rz", "rm", "rp")
    ],
)
def test_bf16_is_the_nearest_or_the_directed_neighbour(source, mode):
    value = floats(source) if source.startswith("f") else integers(source)
    words = cvt(value, source, "bf16", mode)
    result = bf16_to_f32(words).astype(np.float64)
    for exact, got, word in zip(value.tolist(), result.tolist(), words.tolist(), strict=True):
        if not math.isfinite(exact) or not math.isfinite(got):
            assert math.isnan(exact) == math.isnan(got)
            continue
        if abs(exact) >= 2.0**128:
            assert word & 0x7FFF == 0x7F7F
            continue
        error, size = Fraction(got) - Fraction(exact), abs(Fraction(exact))
        unit = max(Fraction(2) ** (math.frexp(exact)[1] - 8), Fraction(2) ** -133)
        if mode == "rn":
            assert abs(error) < unit / 2 or (abs(error) == unit / 2 and word % 2 == 0)
        else:
            assert abs(error) < unit
            inward = abs(Fraction(got)) <= size
            assert {"rz": inward, "rm": error <= 0, "rp": error >= 0}[mode]


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", INTEGERS)
def test_integer_to_integer_wraps_or_clamps(source, target):
    value = integers(source)
    bounds = np.iinfo(NUMPY_TYPES[target])
    low, high = int(bounds.min), int(bounds.max)
    clamped = [min(max(x, low), high) for x in value.tolist()]
    assert cvt(value, source, target, sat=True).tolist() == clamped
    wrapped = [(x - low) % 2**bounds.bits + low for x in value.tolist()]
    assert cvt(value, source, target).tolist() == wrapped


def test_sat_ftz_and_whole_floats():
    value = np.array([-0.5, 0.25, 1.5, np.nan, np.inf, -np.inf, 2.0**-140], np.float32)
    assert cvt(value, "f32", "f32", sat=True, ftz=True).tolist() == [0, 0.25, 1, 0, 1, 0, 0]
    assert cvt(value, "f32", "f16", "rn", sat=True).tolist() == [0, 0.25, 1, 0, 1, 0, 0]
    assert cvt(value[:3], "f32", "f32", "rni").tolist() == [-0.0, 0, 2]
    assert cvt(value[:3], "f32", "f32", "rpi").tolist() == [-0.0, 1, 2]
    assert cvt(np.float64([2.0**-140]), "f64", "f32", "rn", ftz=True).tolist() == [0]
    assert cvt(np.float32([2.0**-140]), "f32", "s32", "rpi", ftz=True).tolist() == [0]


def test_cvt_names_the_legal_choices():
    with pytest.raises(InvalidInput, match="rni, rzi, rmi, rpi"):
        cvt(np.float32([1]), "f32", "s32", "rn")
    with pytest.raises(InvalidInput, match="cvt type"):
        cvt(np.float32([1]), "f32", "e4m3")


def draw_range(low, high, count=200_000):
    rng = np.random.default_rng(3)
    return np.exp2(rng.uniform(low, high, count)).astype(np.float32)


def relative_error(result, exact):
    return float(np.max(np.abs(result.astype(np.float64) / exact - 1)))


def test_approximations_are_within_the_bounds_of_the_isa():
    both, line = draw_range(-125, 125), np.random.default_rng(4).uniform(-6.2831853, 6.2831853, 200_000)
    wide, line = both.astype(np.float64), line.astype(np.float32)
    exponent = np.float32(line * 19)
    assert relative_error(ex2_approx(exponent), np.exp2(exponent.astype(np.float64))) < 2.0**-22
    assert relative_error(rcp_approx(both), 1 / wide) < 2.0**-23
    assert relative_error(rsqrt_approx(both), wide**-0.5) < 2.0**-22.9
    assert relative_error(sqrt_approx(both), wide**0.5) < 2.0**-23
    assert relative_error(tanh_approx(line), np.tanh(line.astype(np.float64))) < 2.0**-11
    near_one = draw_range(-1, 1)
    assert np.max(np.abs(lg2_approx(near_one) - np.log2(near_one.astype(np.float64)))) < 2.0**-22
    assert (
        relative_error(lg2_approx(draw_range(1, 127)), np.log2(draw_range(1, 127).astype(np.float64)))
        < 2.0**-22
    )
    for ours, exact in ((sin_approx, np.sin), (cos_approx, np.cos)):
        assert np.max(np.abs(ours(line) - exact(line.astype(np.float64)))) < 2.0**-20.5
    other = draw_range(-60, 60)[::-1]
    for divide in (div_full, div_approx):
        assert (
            relative_error(divide(draw_range(-60, 60), other), draw_range(-60, 60).astype(np.float64) / other)
            < 2.0**-22
        )


def test_approximations_at_their_ends():
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 2.0**-140], np.float32)
    inf = math.inf
    for function, expected in (
        (ex2_approx, [1, 1, inf, 0, None, 0.5, 1]),
        (lg2_approx, [-inf, -inf, inf, None, None, None, -140]),
        (rcp_approx, [inf, -inf, 0.0, -0.0, None, -1, inf]),
        (rsqrt_approx, [inf, -inf, 0.0, None, None, None, 2.0**70]),
        (sqrt_approx, [0.0, -0.0, inf, None, None, None, 2.0**-70]),
        (tanh_approx, [0.0, -0.0, 1, -1, None, np.float32(-0.7615942), 2.0**-140]),
        (cos_approx, [1, 1, None, None, None, np.float32(0.5403023), 1]),
    ):
        wanted = np.array([np.nan if x is None else x for x in expected], np.float32)
        wanted.view(np.uint32)[np.isnan(wanted)] = 0x7FFFFFFF
        np.testing.assert_array_equal(function(special).view(np.uint32), wanted.view(np.uint32))
    assert rsqrt_approx(special[-1:], ftz=True).tolist() == [inf]
    assert lg2_approx(special[-1:], ftz=True).tolist() == [-inf]
    assert ex2_approx(np.float32([-130.0]), ftz=True).tolist() == [0]
    large = np.float32([3e38, 3e38])
    assert div_approx(np.float32([1e30, np.inf]), large).view(np.uint32).tolist() == [0, 0x7FFFFFFF]


def test_exact_division_and_root():
    rng = np.random.default_rng(6)
    a, b = (rng.integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32) for _ in range(2))
    for result, exact in (
        (div_ieee(a, b), a.astype(np.float64) / b),
        (rcp_ieee(a), 1 / a.astype(np.float64)),
        (sqrt_ieee(a), np.sqrt(a.astype(np.float64))),
    ):
        # A float64 quotient or root of float32 numbers never misleads its rounding, unless subnormal.
        sure = ~(np.abs(exact) < 2.0**-125)
        np.testing.assert_array_equal(result[sure], exact.astype(np.float32)[sure])
        assert set(result.view(np.uint32)[np.isnan(result)].tolist()) == {0x7FFFFFFF}
    tiny = np.float32([2.0**-127])
    assert div_ieee(tiny, tiny).tolist() == [1]
    assert div_ieee(tiny, np.float32([1]), ftz=True).tolist() == [0]
