"""Integers and bits against Python's own, minima and maxima with their NaN rules."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ekc.emulator.functions import maximum, maximum_bf16, minimum, minimum_bf16
from ekc.emulator.launch import launch
from ekc.emulator.numerics.integers import (
    bfe,
    bfi,
    bfind,
    brev,
    clz,
    div,
    dp2a,
    dp4a,
    lop3,
    mad,
    mad24,
    mul24,
    mul_hi,
    mul_wide,
    popc,
    prmt,
    rem,
    sad,
    shf,
    shl,
    shr,
)
from ekc.errors import InvalidInput

TYPES = (np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
WORDS = (np.int32, np.uint32, np.int64, np.uint64)
COUNT = 3000


@pytest.fixture(autouse=True)
def loud():
    """No function may warn: the machine runs them on whatever the registers hold."""
    with np.errstate(all="raise"):
        yield


def draw(dtype, seed, count=COUNT):
    rng, bounds = np.random.default_rng(seed), np.iinfo(dtype)
    value = rng.integers(bounds.min, bounds.max, count, dtype=dtype, endpoint=True)
    value >>= rng.integers(0, bounds.bits, count).astype(dtype)
    value[:5] = [bounds.min, bounds.max, 0, 1, bounds.max]
    return value


def wrap(value, dtype):
    bounds = np.iinfo(dtype)
    return (value - int(bounds.min)) % 2**bounds.bits + int(bounds.min)


def agree(result, expected, dtype):
    assert result.dtype == dtype
    assert result.tolist() == [wrap(x, dtype) for x in expected]


def rows(*arrays):
    return zip(*(array.tolist() for array in arrays), strict=True)


@pytest.mark.parametrize("dtype", TYPES)
def test_products_and_differences(dtype):
    a, b, c = (draw(dtype, seed) for seed in range(3))
    b = np.roll(b, 1)
    bits = np.iinfo(dtype).bits
    agree(mul_hi(a, b), [x * y >> bits for x, y in rows(a, b)], dtype)
    agree(mad(a, b, c, "hi"), [(x * y >> bits) + z for x, y, z in rows(a, b, c)], dtype)
    agree(sad(a, b, c), [z + abs(x - y) for x, y, z in rows(a, b, c)], dtype)
    if bits < 64:
        assert mul_wide(a, b).tolist() == [x * y for x, y in rows(a, b)]


def test_mad_hi_sat_clamps():
    a, b, c = (draw(np.int32, seed) for seed in range(3))
    expected = [min(max((x * y >> 32) + z, -(2**31)), 2**31 - 1) for x, y, z in rows(a, b, c)]
    assert mad(a, b, c, "hi", sat=True).tolist() == expected


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_mul24(dtype):
    a, b, c = draw(dtype, 1), draw(dtype, 2)[::-1].copy(), draw(dtype, 3)

    def low(x):
        x &= 0xFFFFFF
        return x - 2**24 if dtype is np.int32 and x >> 23 else x

    agree(mul24(a, b), [low(x) * low(y) for x, y in rows(a, b)], dtype)
    agree(mul24(a, b, "hi"), [low(x) * low(y) >> 16 for x, y in rows(a, b)], dtype)
    agree(mad24(a, b, c), [low(x) * low(y) + z for x, y, z in rows(a, b, c)], dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_division_truncates(dtype):
    a, b = draw(dtype, 1), np.roll(draw(dtype, 2), 3)
    b[-40:] = np.array([1, 2, 3, 7, 10, 0, 0, np.iinfo(dtype).max] * 5, dtype)
    if a.dtype.kind == "i":
        a[-1], b[-1] = np.iinfo(dtype).min, -1
    quotients, remainders = [], []
    for x, y in rows(a, b):
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) if y else -1
        quotients.append(quotient)
        remainders.append(x - y * quotient if y else -1)
    agree(div(a, b), quotients, dtype)
    agree(rem(a, b), remainders, dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_shifts_go_beyond_the_width(dtype):
    a, bits = draw(dtype, 1), np.iinfo(dtype).bits
    b = np.random.default_rng(2).integers(0, 80, COUNT).astype(np.uint32)
    b[:3] = [2**32 - 1, bits, bits - 1]
    agree(shl(a, b), [x << y if y < bits else 0 for x, y in rows(a, b)], dtype)
    agree(shr(a, b), [x >> min(y, 100) for x, y in rows(a, b)], dtype)


@pytest.mark.parametrize("mode", ["wrap", "clamp"])
def test_funnel_shifts(mode):
    a, b = draw(np.uint32, 1), draw(np.uint32, 2)
    c = np.random.default_rng(3).integers(0, 70, COUNT).astype(np.uint32)
    amounts = [min(n, 32) if mode == "clamp" else n % 32 for n in c.tolist()]
    joined = [y << 32 | x for x, y in rows(a, b)]
    left = [(v << n) >> 32 for v, n in zip(joined, amounts, strict=True)]
    agree(shf(a, b, c, "l", mode), left, np.uint32)
    agree(shf(a, b, c, "r", mode), [v >> n for v, n in zip(joined, amounts, strict=True)], np.uint32)


def field(value, position, length, bits, signed):
    """`bfe` bit by bit, as the ISA writes it."""
    msb, position, length = bits - 1, position & 0xFF, length & 0xFF
    sign = value >> min(position + length - 1, msb) & 1 if signed and length else 0
    return sum(
        (value >> position + i & 1 if i < length and position + i <= msb else sign) << i for i in range(bits)
    )


@pytest.mark.parametrize("dtype", WORDS)
def test_bit_fields(dtype):
    rng, bits = np.random.default_rng(4), np.iinfo(dtype).bits
    a, b = draw(dtype, 1, 1500), draw(dtype, 2, 1500)[::-1].copy()
    position, length = (rng.integers(0, 300 if k == 0 else 70, 1500).astype(np.uint32) for k in (1, 1))
    position[:50] += np.uint32(200)
    length[::7] = 0
    signed = a.dtype.kind == "i"
    expected = [field(x, p, n, bits, signed) for x, p, n in rows(a, position, length)]
    agree(bfe(a, position, length), expected, dtype)
    inserted = []
    for x, y, p, n in rows(a, b, position & np.uint32(0xFF), length):
        mask = ((1 << n) - 1) << p & (1 << bits) - 1
        inserted.append(y & ~mask | x << p & mask)
    agree(bfi(a, b, position, length), inserted, dtype)


@pytest.mark.parametrize("dtype", WORDS)
def test_counting_and_finding(dtype):
    a, bits = draw(dtype, 1), np.iinfo(dtype).bits
    plain = [x % 2**bits for x in a.tolist()]
    agree(popc(a), [x.bit_count() for x in plain], np.uint32)
    agree(clz(a), [bits - x.bit_length() for x in plain], np.uint32)
    agree(brev(a), [int(f"{x:0{bits}b}"[::-1], 2) for x in plain], dtype)
    found = [(~x if x < 0 else x).bit_length() - 1 for x in a.tolist()]
    agree(bfind(a), found, np.uint32)
    agree(bfind(a, shiftamt=True), [-1 if x < 0 else bits - 1 - x for x in found], np.uint32)


def test_lop3_of_every_immediate():
    a, b, c = np.uint32([0xF0] * 4), np.uint32([0xCC] * 4), np.uint32([0xAA] * 4)
    for immediate in range(256):
        assert (lop3(a, b, c, immediate) & np.uint32(0xFF) == immediate).all()


def test_prmt_picks_bytes_and_signs():
    a, b = np.uint32([0x03020180] * 5), np.uint32([0x87060504] * 5)
    control = np.uint32([0x3210, 0x7654, 0x0007, 0x08FA, 0xFFFF])
    wanted = [0x03020180, 0x87060504, 0x80808087, 0x80FFFF00, 0xFFFFFFFF]
    assert prmt(a, b, control).tolist() == wanted
    a, b, control = np.uint32([0x03020100] * 4), np.uint32([0x07060504] * 4), np.uint32([4, 1, 2, 3])
    table = {
        "f4e": [0x03020100, 0x04030201, 0x05040302, 0x06050403],
        "b4e": [0x05060700, 0x06070001, 0x07000102, 0x00010203],
        "rc8": [0x00000000, 0x01010101, 0x02020202, 0x03030303],
        "ecl": [0x03020100, 0x03020101, 0x03020202, 0x03030303],
        "ecr": [0x00000000, 0x01010100, 0x02020100, 0x03020100],
        "rc16": [0x01000100, 0x03020302, 0x01000100, 0x03020302],
    }
    for mode, expected in table.items():
        assert prmt(a, b, control, mode).tolist() == expected
    with pytest.raises(InvalidInput, match="prmt mode"):
        prmt(a, b, control, "rc4")


@pytest.mark.parametrize("left", [np.int32, np.uint32])
@pytest.mark.parametrize("right", [np.int32, np.uint32])
def test_dot_products_of_bytes(left, right):
    a, b = draw(left, 1), draw(right, 2)[::-1].copy()
    c = draw(np.int32 if np.int32 in (left, right) else np.uint32, 3)

    def parts(x, dtype, bits):
        kind = "i" if dtype is np.int32 else "u"
        return np.array([x], dtype).view(f"{kind}{bits // 8}").tolist()

    four, low, high = [], [], []
    for x, y, z in rows(a, b, c):
        halves, quarters = parts(x, left, 16), parts(y, right, 8)
        four.append(z + sum(p * q for p, q in zip(parts(x, left, 8), quarters, strict=True)))
        low.append(z + halves[0] * quarters[0] + halves[1] * quarters[1])
        high.append(z + halves[0] * quarters[2] + halves[1] * quarters[3])
    agree(dp4a(a, b, c), four, c.dtype)
    agree(dp2a(a, b, c), low, c.dtype)
    agree(dp2a(a, b, c, "hi"), high, c.dtype)


FLOATS = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, -math.nan, 2.0**-140]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_minimum_and_maximum_of_floats(dtype):
    a, b = (grid.ravel() for grid in np.meshgrid(np.array(FLOATS[:8], dtype), np.array(FLOATS[:8], dtype)))
    for function, least in ((minimum, True), (maximum, False)):
        plain, strict = function(a, b), function(a, b, nan=True)
        for x, y, got, with_nan in rows(a, b, plain, strict):
            odd = math.isnan(x), math.isnan(y)
            assert math.isnan(with_nan) == any(odd)
            if all(odd):
                assert math.isnan(got)
                continue
            numbers = [v for v in (x, y) if not math.isnan(v)]
            key = [(v, math.copysign(1, v)) for v in numbers]
            assert (got, math.copysign(1, got)) == (min(key) if least else max(key))
    if dtype is np.float32:
        nan = minimum(a, b)
        assert set(nan.view(np.uint32)[np.isnan(nan)].tolist()) == {0x7FFFFFFF}


def test_minimum_flushes_and_takes_bf16():
    tiny, zero = np.float32([2.0**-140]), np.float32([0])
    assert maximum(tiny, zero).tolist() == [2.0**-140]
    assert maximum(tiny, zero, ftz=True).tolist() == [0]
    words = np.uint16([0x3F80, 0xBF80, 0x7FC1]), np.uint16([0x4000, 0x8000, 0x3F80])
    assert maximum_bf16(*words).tolist() == [0x4000, 0x8000, 0x3F80]
    assert minimum_bf16(*words, nan=True).tolist() == [0x3F80, 0xBF80, 0x7FFF]
    assert minimum(np.int32([-1]), np.int32([1])).tolist() == [-1]
    assert maximum(np.uint32([2**32 - 1]), np.uint32([1])).tolist() == [2**32 - 1]


def compute_on_machine(body, *arrays):
    """The words that a thread for each pair of numbers stores: PTX with %a and %b, its result in %d."""
    declared = ".reg .b32 %a, %b, %d; .reg .b32 %t; .reg .b64 %q<5>; .reg .pred %p<4>;"
    loads = "".join(
        f"ld.param.u64 %q{n}, [{name}]; add.u64 %q{n}, %q{n}, %q4;" for n, name in enumerate("xyz", 1)
    )
    ptx = (
        ".version 8.0\n.target sm_80\n.address_size 64\n"
        ".visible .entry k(.param .u64 x, .param .u64 y, .param .u64 z) {"
        f"{declared} mov.u32 %t, %tid.x; mul.wide.u32 %q4, %t, 4; {loads}"
        f"ld.global.b32 %a, [%q1]; ld.global.b32 %b, [%q2]; {body} st.global.b32 [%q3], %d; ret; }}"
    )
    result = np.zeros(arrays[0].size, np.uint32)
    assert launch(ptx, "k", grid=(1,), block=(result.size,), args=[*arrays, result]).clean
    return result


def test_signs():
    integers, floats = np.int32([-(2**31), 5]), np.float32([0.0, -0.0, -2.5, 2.0**-140])
    assert compute_on_machine("abs.s32 %d, %a;", -integers, integers).tolist() == [2**31, 5]
    assert compute_on_machine("neg.s32 %d, %a;", integers, integers).tolist() == [2**31, 2**32 - 5]
    negated = compute_on_machine("neg.f32 %d, %a;", floats, floats)
    assert negated.tolist() == (floats.view(np.uint32) ^ 0x80000000).tolist()
    assert compute_on_machine("abs.ftz.f32 %d, %a;", floats, floats).tolist() == [0, 0, 0x40200000, 0]
    copied = compute_on_machine("copysign.f32 %d, %a, %b;", np.float32([-1, 1]), np.float32([3, -4]))
    assert copied.view(np.float32).tolist() == [-3, 4]


def test_comparisons_of_floats():
    a, b = (grid.ravel() for grid in np.meshgrid(np.float32(FLOATS), np.float32(FLOATS)))
    ordered = ~(np.isnan(a) | np.isnan(b))

    def compare(name, a=a, b=b):
        return compute_on_machine(f"set.{name}.u32.f32 %d, %a, %b;", a, b) == 2**32 - 1

    for name, plain in (("eq", a == b), ("lt", a < b), ("le", a <= b), ("gt", a > b), ("ge", a >= b)):
        assert (compare(name) == (plain & ordered)).all()
        assert (compare(f"{name}u") == (plain | ~ordered)).all()
    assert (compare("ne") == ((a != b) & ordered)).all()
    assert (compare("neu") == (a != b)).all()
    assert (compare("num") == ordered).all()
    assert (compare("nan") == ~ordered).all()
    assert compare("eq.ftz", np.float32([2.0**-140]), np.float32([0])).all()


def test_comparisons_of_integers_and_their_results():
    a, b = np.int32([-1, 1, 5]), np.int32([1, -1, 5])
    for name, expected in (
        ("lt.u32.s32", [-1, 0, 0]),
        ("lo.u32.u32", [0, -1, 0]),
        ("hs.u32.u32", [-1, 0, -1]),
    ):
        assert compute_on_machine(f"set.{name} %d, %a, %b;", a, b).view(np.int32).tolist() == expected
    both = "setp.ne.s32 %p3, %a, 5; setp.lt.{}s32 %p1|%p2, %a, %b{}; selp.u32 %d, 1, 0, %p{};"
    for combine, other, predicate, expected in (
        ("and.", ", %p3", 1, [1, 0, 0]), ("and.", ", %p3", 2, [0, 1, 0]), ("", "", 2, [0, 1, 1]),
        ("xor.", ", %p3", 1, [0, 1, 0]),
    ):  # fmt: skip
        text = both.format(combine, other, predicate)
        assert compute_on_machine(text, a, b).tolist() == expected
    assert compute_on_machine("set.lt.f32.s32 %d, %a, %b;", a, b).view(np.float32).tolist() == [1, 0, 0]
