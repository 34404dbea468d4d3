"""CUDA kernels by hand: arithmetic of every type."""

# ruff: noqa: E501 (CUDA text)
from __future__ import annotations

import numpy as np

from tests.emulator.case import Case, catalogue, floats, rng, zeros

CASES: list[Case] = []
add = catalogue(CASES)

add(
    "integer_division",
    """void k(const int* a, const int* b, int* q, int n) { int i = threadIdx.x;
    if (i < n) q[i] = a[i] / b[i] * 1000 + a[i] % b[i]; }""",
    (1,),
    (100,),
    lambda: [
        rng().integers(-999, 999, 100).astype(np.int32),
        rng().integers(1, 50, 100).astype(np.int32) * 3 - 80,
        np.zeros(100, np.int32),
        100,
    ],
    2,
    lambda a: np.trunc(a[0] / a[1]).astype(int) * 1000 + np.fmod(a[0], a[1]),
)
add(
    "wide_integers",
    """void k(const long long* a, unsigned long long* b) { int i = threadIdx.x;
    unsigned long long v = a[i]; v ^= v >> 33; v *= 0xff51afd7ed558ccdULL; v ^= v >> 33; b[i] = v + __umul64hi(v, 12345678901ULL); }""",
    (1,),
    (64,),
    lambda: [rng().integers(-(2**62), 2**62, 64), np.zeros(64, np.uint64)],
    1,
    lambda a: murmur(a[0]),
)
add(
    "bytes_and_shorts",
    """void k(const signed char* a, const unsigned short* b, short* c) { int i = threadIdx.x;
    c[i] = (short)(a[i] * 3 - (b[i] >> 2)); }""",
    (1,),
    (50,),
    lambda: [
        rng().integers(-128, 128, 50).astype(np.int8),
        rng().integers(0, 65536, 50).astype(np.uint16),
        np.zeros(50, np.int16),
    ],
    2,
    lambda a: (a[0].astype(np.int64) * 3 - (a[1].astype(np.int64) >> 2)).astype(np.int16),
)
add(
    "half_arithmetic",
    """void k(const unsigned short* a, const unsigned short* b, unsigned short* c) { int i = threadIdx.x;
    unsigned short r; asm("{ .reg .b16 t; mul.f16 t, %1, %2; fma.rn.f16 %0, t, %1, %2; }" : "=h"(r) : "h"(a[i]), "h"(b[i]));
    c[i] = r; }""",
    (1,),
    (64,),
    lambda: [floats(64).astype(np.float16), (floats(64) * 2).astype(np.float16), np.zeros(64, np.float16)],
    2,
    lambda a: a[0] * a[1] * a[0] + a[1],
    tolerance=4e-3,
)
add(
    "doubles",
    """void k(const double* a, double* b) { int i = threadIdx.x; b[i] = sqrt(a[i] * a[i] + 1.0) / (a[i] + 3.0); }""",
    (1,),
    (40,),
    lambda: [np.abs(rng().standard_normal(40)), np.zeros(40)],
    1,
    lambda a: np.sqrt(a[0] ** 2 + 1) / (a[0] + 3),
    tolerance=1e-14,
)
add(
    "fast_math",
    """void k(const float* a, float* b) { int i = threadIdx.x; float x = a[i];
    b[i] = __expf(x) * __sinf(x) + __cosf(x) * rsqrtf(x * x + 1) + __fdividef(x, 3.0f) + __logf(x * x + 1); }""",
    (1,),
    (64,),
    lambda: [floats(64), zeros(64)],
    1,
    lambda a: (
        np.exp(a[0]) * np.sin(a[0]) + np.cos(a[0]) / np.sqrt(a[0] ** 2 + 1) + a[0] / 3 + np.log(a[0] ** 2 + 1)
    ),
    tolerance=1e-4,
)
add(
    "bit_tricks",
    """void k(const unsigned* a, unsigned* b) { int i = threadIdx.x; unsigned v = a[i];
    b[i] = __brev(v) ^ (__popc(v) << 8) ^ __clz(v) ^ __byte_perm(v, ~v, 0x5140) ^ __funnelshift_l(v, 77u, i); }""",
    (1,),
    (64,),
    lambda: [rng().integers(0, 2**32, 64).astype(np.uint32), np.zeros(64, np.uint32)],
    1,
    lambda a: np.array([tricks(int(v), i) for i, v in enumerate(a[0])], np.uint32),
)
add(
    "half2_fma",
    """void k(const unsigned* a, const unsigned* b, unsigned* c) { int i = threadIdx.x; unsigned r;
    asm("fma.rn.f16x2 %0, %1, %2, %1;" : "=r"(r) : "r"(a[i]), "r"(b[i])); c[i] = r; }""",
    (1,),
    (32,),
    lambda: [floats(64).astype(np.float16), (2 * floats(64)).astype(np.float16), np.zeros(64, np.float16)],
    2,
    lambda a: (a[0].astype(float) * a[1].astype(float) + a[0]).astype(np.float16),
    tolerance=0,
)
add(
    "bfloat16",
    """void k(const float* a, float* b) { int i = threadIdx.x; unsigned short h, r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(a[i])); asm("fma.rn.bf16 %0, %1, %1, %1;" : "=h"(r) : "h"(h));
    b[i] = __int_as_float((int)r << 16); }""",
    (1,),
    (64,),
    lambda: [floats(64), zeros(64)],
    1,
    lambda a: a[0] * a[0] + a[0],
    tolerance=2e-2,
)
add(
    "wide_division",
    """void k(const long long* a, long long* b) { int i = threadIdx.x; long long x = a[i], y = a[63 - i] >> 40;
    b[i] = __mul64hi(x, a[63 - i]) + x / (y | 1) + x % (y | 1); }""",
    (1,),
    (64,),
    lambda: [rng().integers(-(2**62), 2**62, 64), np.zeros(64, np.int64)],
    1,
    lambda a: divided(a[0]),
    tolerance=0,
)
add(
    "int8_dot",
    """void k(const signed char* a, const int* w, int* b, signed char* c) { int i = threadIdx.x, s = 0; const int* v = (const int*)a;
    for (int j = 0; j < 4; ++j) asm("dp4a.s32.s32 %0, %1, %2, %0;" : "+r"(s) : "r"(v[4 * i + j]), "r"(w[j]));
    b[i] = s; c[i] = (signed char)(s > 127 ? 127 : s < -128 ? -128 : s); }""",
    (1,),
    (32,),
    lambda: [
        rng().integers(-128, 128, (32, 16)).astype(np.int8),
        rng().integers(-3, 4, 16).astype(np.int8),
        np.zeros(32, np.int32),
        np.zeros(32, np.int8),
    ],
    2,
    lambda a: a[0].astype(int) @ a[1].astype(int),
    tolerance=0,
)


def murmur(values: np.ndarray) -> np.ndarray:
    out = []
    for value in values:
        v = int(value) % 2**64
        v ^= v >> 33
        v = v * 0xFF51AFD7ED558CCD % 2**64
        v ^= v >> 33
        out.append((v + (v * 12345678901 >> 64)) % 2**64)
    return np.array(out, np.uint64)


def tricks(v: int, i: int) -> int:
    full = 0xFFFFFFFF
    pool = v | ((v ^ full) << 32)
    perm = sum((pool >> (8 * (0x5140 >> (4 * k) & 7)) & 255) << (8 * k) for k in range(4))
    shifted = ((77 << 32 | v) << (i & 31)) >> 32 & full
    return int(f"{v:032b}"[::-1], 2) ^ (bin(v).count("1") << 8) ^ (32 - v.bit_length()) ^ perm ^ shifted


def divided(values: np.ndarray) -> np.ndarray:
    """In whole numbers, quotients towards zero."""
    out = []
    for x, other in zip(values.tolist(), values[::-1].tolist(), strict=True):
        y = (other >> 40) | 1
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        out.append((x * other >> 64) + quotient + (x - quotient * y))
    return np.array(out, np.int64)
