"""Small CUDA kernels by hand, each with its launch and what NumPy says it must give."""

# ruff: noqa: E501 (CUDA text)
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import ekc.emulator as emulator
from ekc.codegen import nvrtc
from ekc.emulator import Report


@cache
def ptx(source: str, arch: str = "sm_80", options: tuple[str, ...] = ()) -> str:
    return nvrtc.compile(source, arch, options).ptx


@dataclass(frozen=True)
class Case:
    """A kernel `k`, its launch, fresh arguments, and the expected value of one of them."""

    name: str
    source: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: Callable[[], list[Any]]
    output: int
    expected: Callable[[list[Any]], np.ndarray]
    dynamic_shared: int = 0
    arch: str = "sm_80"
    tolerance: float = 1e-5

    def run(self, source: str | None = None, **options: Any) -> tuple[Report, np.ndarray, np.ndarray]:
        args = self.args()
        given = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        report = emulator.launch(
            ptx(source or self.source, self.arch), "k", grid=self.grid, block=self.block, args=args,
            dynamic_shared=self.dynamic_shared, **options,
        )  # fmt: skip
        return report, args[self.output], self.expected(given)

    def check(self) -> Report:
        report, found, expected = self.run()
        assert report.findings == (), str(report)
        np.testing.assert_allclose(found, expected, rtol=self.tolerance, atol=self.tolerance)
        return report


def _rng() -> np.random.Generator:
    return np.random.default_rng(7)


def floats(*shape: int) -> np.ndarray:
    return _rng().standard_normal(shape).astype(np.float32)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


CASES: list[Case] = []


def add(name: str, source: str, *rest: Any, **more: Any) -> None:
    CASES.append(
        Case(name, 'extern "C" __global__ ' + source if "__global__" not in source else source, *rest, **more)
    )


add(
    "vector_add",
    "void k(const float* a, const float* b, float* c, int n) {"
    " int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) c[i] = a[i] + b[i]; }",
    (8,),
    (128,),
    lambda: [floats(1000), 2 * floats(1000), zeros(1000), 1000],
    2,
    lambda a: a[0] + a[1],
)
add(
    "saxpy_grid_stride",
    "void k(float a, const float* x, float* y, int n) {"
    " for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = a * x[i] + y[i]; }",
    (3,),
    (64,),
    lambda: [2.5, floats(777), floats(777), 777],
    2,
    lambda a: a[0] * a[1] + a[2],
)
for pad in (0, 1):
    add(
        f"transpose_pad{pad}",
        f"""void k(const float* a, float* b, int n) {{
    __shared__ float t[32][32 + {pad}];
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) t[threadIdx.y + j][threadIdx.x] = a[(y + j) * n + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x; y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) b[(y + j) * n + x] = t[threadIdx.x][threadIdx.y + j]; }}""",
        (3, 3),
        (32, 8),
        lambda: [floats(96, 96), zeros(96, 96), 96],
        1,
        lambda a: a[0].T,
    )
add(
    "reduce_shared",
    """void k(const float* a, float* out, int n) {
    __shared__ float s[256]; int t = threadIdx.x, i = blockIdx.x * 256 + t;
    s[t] = i < n ? a[i] : 0.0f; __syncthreads();
    for (int d = 128; d > 0; d >>= 1) { if (t < d) s[t] += s[t + d]; __syncthreads(); }
    if (t == 0) out[blockIdx.x] = s[0]; }""",
    (4,),
    (256,),
    lambda: [floats(1000), zeros(4), 1000],
    1,
    lambda a: np.pad(a[0], (0, 24)).reshape(4, 256).sum(1),
    tolerance=1e-4,
)
add(
    "reduce_shuffle",
    """void k(const float* a, float* out) {
    __shared__ float s[8]; float v = a[blockIdx.x * 256 + threadIdx.x];
    for (int d = 16; d; d >>= 1) v += __shfl_down_sync(0xffffffffu, v, d);
    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v; __syncthreads();
    if (threadIdx.x < 32) { v = threadIdx.x < 8 ? s[threadIdx.x] : 0.0f;
      for (int d = 4; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
      if (threadIdx.x == 0) out[blockIdx.x] = v; } }""",
    (5,),
    (256,),
    lambda: [floats(5 * 256), zeros(5)],
    1,
    lambda a: a[0].reshape(5, 256).sum(1),
    tolerance=1e-4,
)
add(
    "reduce_atomic",
    """void k(const float* a, float* out, int n) {
    int i = blockIdx.x * 128 + threadIdx.x; float v = i < n ? a[i] : 0.f;
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
    if ((threadIdx.x & 31) == 0) atomicAdd(out, v); }""",
    (7,),
    (128,),
    lambda: [floats(800), zeros(1), 800],
    1,
    lambda a: a[0].sum(keepdims=True),
    tolerance=1e-3,
)
add(
    "divergent_loops",
    """void k(int* out, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; int c = 0, v = i + 1;
    while (v != 1) { v = v & 1 ? 3 * v + 1 : v / 2; ++c; } if (i < n) out[i] = c; }""",
    (2,),
    (96,),
    lambda: [np.zeros(190, np.int32), 190],
    0,
    lambda a: np.array([collatz(i + 1) for i in range(190)]),
)
add(
    "early_exit",
    """void k(const float* a, float* b, int n) { int i = blockIdx.x * 64 + threadIdx.x;
    if (i >= n) return; if (a[i] < 0) { b[i] = -1; return; } b[i] = sqrtf(a[i]); }""",
    (4,),
    (64,),
    lambda: [floats(250), zeros(250), 250],
    1,
    lambda a: np.where(a[0] < 0, -1, np.sqrt(np.abs(a[0]))),
)
add(
    "histogram_shared",
    """void k(const unsigned char* a, unsigned* h, int n) {
    __shared__ unsigned s[256]; s[threadIdx.x] = 0; __syncthreads();
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += 256 * gridDim.x) atomicAdd(&s[a[i]], 1u);
    __syncthreads(); atomicAdd(&h[threadIdx.x], s[threadIdx.x]); }""",
    (3,),
    (256,),
    lambda: [_rng().integers(0, 256, 5000).astype(np.uint8), np.zeros(256, np.uint32), 5000],
    1,
    lambda a: np.bincount(a[0], minlength=256),
)
add(
    "scan_hillis_steele",
    """void k(const int* a, int* b) { __shared__ int s[2][128]; int t = threadIdx.x, p = 0;
    s[0][t] = a[blockIdx.x * 128 + t]; __syncthreads();
    for (int d = 1; d < 128; d *= 2) { s[1 - p][t] = s[p][t] + (t >= d ? s[p][t - d] : 0); p = 1 - p; __syncthreads(); }
    b[blockIdx.x * 128 + t] = s[p][t]; }""",
    (3,),
    (128,),
    lambda: [_rng().integers(-9, 9, 384).astype(np.int32), np.zeros(384, np.int32)],
    1,
    lambda a: a[0].reshape(3, 128).cumsum(1).reshape(-1),
)
add(
    "stencil",
    """void k(const float* a, float* b, int n) { __shared__ float s[130];
    int i = blockIdx.x * 128 + threadIdx.x, t = threadIdx.x + 1;
    s[t] = i < n ? a[i] : 0; if (t == 1) s[0] = i ? a[i - 1] : 0; if (t == 128) s[129] = i + 1 < n ? a[i + 1] : 0;
    __syncthreads(); if (i < n) b[i] = (s[t - 1] + s[t] + s[t + 1]) / 3; }""",
    (4,),
    (128,),
    lambda: [floats(500), zeros(500), 500],
    1,
    lambda a: np.convolve(np.pad(a[0], 1), np.ones(3, np.float32), "valid") / 3,
)
add(
    "double_buffer",
    """void k(const float* a, float* b) { __shared__ float s[2][64]; int t = threadIdx.x; float v = 0;
    s[0][t] = a[t]; __syncthreads();
    for (int i = 0; i < 8; ++i) { if (i < 7) s[1 - (i & 1)][t] = a[(i + 1) * 64 + t];
      v += s[i & 1][63 - t]; __syncthreads(); } b[t] = v; }""",
    (1,),
    (64,),
    lambda: [floats(8, 64), zeros(64)],
    1,
    lambda a: a[0].sum(0)[::-1],
)
add(
    "dynamic_shared",
    """void k(const float* a, float* b, int n) { extern __shared__ float s[]; int t = threadIdx.x;
    s[t] = a[t]; s[n + t] = 2 * a[t]; __syncthreads(); b[t] = s[n - 1 - t] + s[2 * n - 1 - t]; }""",
    (1,),
    (96,),
    lambda: [floats(96), zeros(96), 96],
    1,
    lambda a: 3 * a[0][::-1],
    dynamic_shared=768,
)
add(
    "float4_copy",
    """void k(const float4* a, float4* b, int n) { int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) { float4 v = a[i]; b[i] = make_float4(v.w, v.z, v.y, v.x); } }""",
    (2,),
    (64,),
    lambda: [floats(100, 4), zeros(100, 4), 100],
    1,
    lambda a: a[0][:, ::-1],
)
add(
    "softmax_rows",
    """void k(const float* a, float* b, int n) { const float* r = a + blockIdx.x * n; __shared__ float s[4];
    int t = threadIdx.x; float m = __int_as_float(0xff800000); for (int i = t; i < n; i += 128) m = fmaxf(m, r[i]);
    for (int d = 16; d; d >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, d));
    if (t % 32 == 0) s[t / 32] = m; __syncthreads(); m = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3])); __syncthreads();
    float z = 0; for (int i = t; i < n; i += 128) z += expf(r[i] - m);
    for (int d = 16; d; d >>= 1) z += __shfl_xor_sync(~0u, z, d);
    if (t % 32 == 0) s[t / 32] = z; __syncthreads(); z = s[0] + s[1] + s[2] + s[3];
    for (int i = t; i < n; i += 128) b[blockIdx.x * n + i] = expf(r[i] - m) / z; }""",
    (3,),
    (128,),
    lambda: [floats(3, 300), zeros(3, 300), 300],
    1,
    lambda a: (e := np.exp(a[0] - a[0].max(1, keepdims=True))) / e.sum(1, keepdims=True),
)
add(
    "ballot_compact",
    """void k(const int* a, int* out, int* count) { int t = threadIdx.x; int v = a[t];
    unsigned m = __ballot_sync(~0u, v > 0); int at = __popc(m & ((1u << t) - 1)); if (v > 0) out[at] = v;
    if (t == 0) *count = __popc(m); }""",
    (1,),
    (32,),
    lambda: [_rng().integers(-5, 5, 32).astype(np.int32), np.zeros(32, np.int32), np.zeros(1, np.int32)],
    1,
    lambda a: np.pad(a[0][a[0] > 0], (0, int((a[0] <= 0).sum()))),
)
add(
    "integer_division",
    """void k(const int* a, const int* b, int* q, int n) { int i = threadIdx.x;
    if (i < n) q[i] = a[i] / b[i] * 1000 + a[i] % b[i]; }""",
    (1,),
    (100,),
    lambda: [
        _rng().integers(-999, 999, 100).astype(np.int32),
        _rng().integers(1, 50, 100).astype(np.int32) * 3 - 80,
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
    lambda: [_rng().integers(-(2**62), 2**62, 64), np.zeros(64, np.uint64)],
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
        _rng().integers(-128, 128, 50).astype(np.int8),
        _rng().integers(0, 65536, 50).astype(np.uint16),
        np.zeros(50, np.int16),
    ],
    2,
    lambda a: (a[0].astype(np.int64) * 3 - (a[1].astype(np.int64) >> 2)).astype(np.int16),
)
add(
    "local_array",
    """void k(const int* a, int* b) { int v[16]; int t = threadIdx.x;
    for (int i = 0; i < 16; ++i) v[(a[t] + i) & 15] = i * t; b[t] = v[t & 15]; }""",
    (1,),
    (64,),
    lambda: [_rng().integers(0, 16, 64).astype(np.int32), np.zeros(64, np.int32)],
    1,
    lambda a: ((np.arange(64) - a[0]) % 16) * np.arange(64),
)
add(
    "constant_table",
    """__constant__ float w[5] = {1, 2, 3, 2, 1};
    extern "C" __global__ void k(const float* a, float* b, int n) { int i = threadIdx.x; float s = 0;
    for (int j = 0; j < 5; ++j) if (i + j < n) s += w[j] * a[i + j]; b[i] = s; }""",
    (1,),
    (100,),
    lambda: [floats(100), zeros(100), 100],
    1,
    lambda a: np.convolve(np.pad(a[0], (0, 4)), [1, 2, 3, 2, 1], "valid"),
)
add(
    "switch_table",
    """void k(const int* a, int* b) { int t = threadIdx.x, v = a[t];
    switch (v) { case 0: b[t] = 5; break; case 1: b[t] = t * t; break; case 2: b[t] = -t; break; case 3: b[t] = t ^ 21; break;
    case 4: b[t] = t % 7; break; case 5: b[t] = 99; break; case 6: b[t] = t + v; break; default: b[t] = -1; } }""",
    (1,),
    (64,),
    lambda: [_rng().integers(0, 9, 64).astype(np.int32), np.zeros(64, np.int32)],
    1,
    lambda a: np.array([[5, t * t, -t, t ^ 21, t % 7, 99, t + 6, -1, -1][v] for t, v in enumerate(a[0])]),
)
add(
    "matmul_naive",
    """void k(const float* a, const float* b, float* c, int n) { int x = blockIdx.x * 16 + threadIdx.x,
    y = blockIdx.y * 16 + threadIdx.y; if (x >= n || y >= n) return; float s = 0;
    for (int i = 0; i < n; ++i) s += a[y * n + i] * b[i * n + x]; c[y * n + x] = s; }""",
    (3, 3),
    (16, 16),
    lambda: [floats(40, 40), floats(40, 40) + 1, zeros(40, 40), 40],
    2,
    lambda a: a[0] @ a[1],
    tolerance=1e-4,
)
add(
    "matmul_shared",
    """void k(const float* a, const float* b, float* c, int n) { __shared__ float p[16][16], q[16][16];
    int tx = threadIdx.x, ty = threadIdx.y, x = blockIdx.x * 16 + tx, y = blockIdx.y * 16 + ty; float s = 0;
    for (int i = 0; i < n; i += 16) { p[ty][tx] = a[y * n + i + tx]; q[ty][tx] = b[(i + ty) * n + x]; __syncthreads();
      for (int j = 0; j < 16; ++j) s += p[ty][j] * q[j][tx]; __syncthreads(); } c[y * n + x] = s; }""",
    (3, 3),
    (16, 16),
    lambda: [floats(48, 48), floats(48, 48) + 1, zeros(48, 48), 48],
    2,
    lambda a: a[0] @ a[1],
    tolerance=1e-4,
)
add(
    "async_copy",
    """void k(const float* a, float* b) { __shared__ __align__(16) float s[2][128]; int t = threadIdx.x; float v = 0;
    auto copy = [&](int i) { unsigned d = (unsigned)__cvta_generic_to_shared(&s[i & 1][t * 4]);
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(d), "l"(a + i * 128 + t * 4));
      asm volatile("cp.async.commit_group;"); };
    copy(0); for (int i = 0; i < 6; ++i) { if (i < 5) { copy(i + 1); asm volatile("cp.async.wait_group 1;"); }
      else asm volatile("cp.async.wait_group 0;"); __syncthreads();
      for (int j = 0; j < 4; ++j) v += s[i & 1][127 - (t + 32 * j)]; __syncthreads(); } b[t] = v; }""",
    (1,),
    (32,),
    lambda: [floats(6, 128), zeros(32)],
    1,
    lambda a: a[0].sum(0)[::-1].reshape(4, 32).sum(0),
)
add(
    "mma_f16",
    """void k(const unsigned* a, const unsigned* b, float* c) { int l = threadIdx.x, g = l / 4, q = l % 4;
    unsigned a0 = a[g * 8 + q], a1 = a[(g + 8) * 8 + q], a2 = a[g * 8 + q + 4], a3 = a[(g + 8) * 8 + q + 4];
    unsigned b0 = b[g * 8 + q], b1 = b[g * 8 + q + 4]; float d[4] = {0, 0, 0, 0};
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    c[g * 8 + q * 2] = d[0]; c[g * 8 + q * 2 + 1] = d[1]; c[(g + 8) * 8 + q * 2] = d[2]; c[(g + 8) * 8 + q * 2 + 1] = d[3]; }""",
    (1,),
    (32,),
    lambda: [floats(16, 16).astype(np.float16), (floats(8, 16) + 1).astype(np.float16), zeros(16, 8)],
    2,
    lambda a: a[0].astype(np.float32) @ a[1].astype(np.float32).T,
    tolerance=1e-3,
)
add(
    "named_barriers",
    """void k(const int* a, int* b) { __shared__ int s[128]; int t = threadIdx.x;
    if (t < 64) { s[t] = a[t]; asm volatile("bar.sync 1, 64;" ::: "memory"); b[t] = s[63 - t]; }
    else { s[t] = a[t] * 2; asm volatile("bar.sync 2, 64;" ::: "memory"); b[t] = s[191 - t]; } }""",
    (2,),
    (128,),
    lambda: [_rng().integers(0, 99, 128).astype(np.int32), np.zeros(128, np.int32)],
    1,
    lambda a: np.r_[a[0][:64][::-1], 2 * a[0][64:][::-1]],
)
add(
    "sync_count",
    """void k(const int* a, int* b) { int n = __syncthreads_count(a[threadIdx.x] > 0);
    b[threadIdx.x] = n * 10 + __syncthreads_or(a[threadIdx.x] > 3) + 2 * __syncthreads_and(a[threadIdx.x] > -9); }""",
    (1,),
    (70,),
    lambda: [_rng().integers(-5, 5, 70).astype(np.int32), np.zeros(70, np.int32)],
    1,
    lambda a: np.full(70, int((a[0] > 0).sum()) * 10 + int((a[0] > 3).any()) + 2),
)
add(
    "compare_and_swap",
    """void k(const float* a, float* best) { int i = blockIdx.x * 64 + threadIdx.x; int* p = (int*)best;
    int old = *(volatile int*)p; while (__int_as_float(old) < a[i]) { int was = atomicCAS(p, old, __float_as_int(a[i]));
      if (was == old) break; old = was; } }""",
    (2,),
    (64,),
    lambda: [np.abs(floats(128)), zeros(1)],
    1,
    lambda a: a[0].max(keepdims=True),
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
    lambda: [np.abs(_rng().standard_normal(40)), np.zeros(40)],
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
    lambda: [_rng().integers(0, 2**32, 64).astype(np.uint32), np.zeros(64, np.uint32)],
    1,
    lambda a: np.array([tricks(int(v), i) for i, v in enumerate(a[0])], np.uint32),
)
add(
    "structure_argument",
    """struct P { int n; float s; long long o; };
    extern "C" __global__ void k(P p, const float* a, float* b) { int i = threadIdx.x; if (i < p.n) b[i] = a[i] * p.s + p.o; }""",
    (1,),
    (64,),
    lambda: [np.array([(50, 1.5, -3)], "i4,f4,i8").tobytes(), floats(64), zeros(64)],
    2,
    lambda a: np.where(np.arange(64) < 50, a[1] * np.float32(1.5) - 3, 0),
)
add(
    "generic_pointers",
    """void k(float* a, float* b) { __shared__ float s[64]; int t = threadIdx.x; s[t] = 100 + t; __syncthreads();
    float* p = t & 1 ? s : a; b[t] = p[t]; __syncthreads(); p[t] = -1; __syncthreads(); b[64 + t] = s[t]; }""",
    (1,),
    (64,),
    lambda: [floats(64), zeros(128)],
    1,
    lambda a: np.r_[
        np.where(np.arange(64) % 2, 100 + np.arange(64), a[0]),
        np.where(np.arange(64) % 2, -1, 100 + np.arange(64)),
    ],
)


add(
    "ldmatrix_mma",
    """void k(const unsigned short* a, const unsigned short* b, float* c) { __shared__ __align__(16) unsigned short s[16][24], u[8][24];
    int l = threadIdx.x; for (int i = l; i < 256; i += 32) s[i / 16][i % 16] = a[i]; for (int i = l; i < 128; i += 32) u[i / 16][i % 16] = b[i];
    __syncwarp(); unsigned f[4], g[2]; float d[4] = {0, 0, 0, 0};
    unsigned p = (unsigned)__cvta_generic_to_shared(&s[l % 16][l / 16 * 8]), q = (unsigned)__cvta_generic_to_shared(&u[l % 8][l / 8 % 2 * 8]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]) : "r"(p));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(g[0]), "=r"(g[1]) : "r"(q));
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(f[0]), "r"(f[1]), "r"(f[2]), "r"(f[3]), "r"(g[0]), "r"(g[1]));
    for (int i = 0; i < 4; ++i) c[(l / 4 + i / 2 * 8) * 8 + l % 4 * 2 + i % 2] = d[i]; }""",
    (1,),
    (32,),
    lambda: [floats(16, 16).astype(np.float16), (floats(8, 16) + 1).astype(np.float16), zeros(16, 8)],
    2,
    lambda a: a[0].astype(np.float32) @ a[1].astype(np.float32).T,
    tolerance=1e-3,
)
add(
    "mma_int8",
    """void k(const int* a, const int* b, int* c) { int l = threadIdx.x, g = l / 4, q = l % 4; int d[4] = {0, 0, 0, 0};
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a[g * 8 + q]), "r"(a[(g + 8) * 8 + q]), "r"(a[g * 8 + q + 4]),
        "r"(a[(g + 8) * 8 + q + 4]), "r"(b[g * 8 + q]), "r"(b[g * 8 + q + 4]));
    for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + q * 2 + i % 2] = d[i]; }""",
    (1,),
    (32,),
    lambda: [
        _rng().integers(-128, 128, (16, 32)).astype(np.int8),
        _rng().integers(-9, 9, (8, 32)).astype(np.int8),
        np.zeros((16, 8), np.int32),
    ],
    2,
    lambda a: a[0].astype(int) @ a[1].astype(int).T,
)
add(
    "redux_and_match",
    """void k(const int* a, int* b) { int t = threadIdx.x; int m = __reduce_max_sync(~0u, a[t]);
    unsigned s = __match_any_sync(~0u, a[t]); b[t] = m * 100 + __popc(s); }""",
    (1,),
    (64,),
    lambda: [_rng().integers(0, 6, 64).astype(np.int32), np.zeros(64, np.int32)],
    1,
    lambda a: np.concatenate([w.max() * 100 + (w[:, None] == w).sum(1) for w in a[0].reshape(2, 32)]),
)
add(
    "shuffle_in_a_loop_of_some_lanes",
    """void k(const int* a, int* b) { int t = threadIdx.x, v = a[t];
    if (t % 32 < 16) { for (int i = 0; i < 1 + t / 32; ++i) v += __shfl_xor_sync(0xffffu, v, 8); } else v = -v; b[t] = v; }""",
    (2,),
    (96,),
    lambda: [_rng().integers(0, 9, 96).astype(np.int32), np.zeros(96, np.int32)],
    1,
    lambda a: half_warps(a[0]),
)
add(
    "short_warp_shuffle",
    """void k(const int* a, int* b) { int t = threadIdx.x; b[t] = __shfl_up_sync(0xffffffffu, a[t], 1); }""",
    (3,),
    (40,),
    lambda: [np.arange(40, dtype=np.int32) * 3, np.zeros(40, np.int32)],
    1,
    lambda a: np.where(np.arange(40) % 32, a[0] - 3, a[0]),
)
add(
    "producer_consumer",
    """void k(const int* a, int* b) { __shared__ int s[32]; int t = threadIdx.x;
    if (t < 32) { s[t] = a[t] * 3; asm volatile("bar.arrive 1, 64;" ::: "memory"); }
    else { asm volatile("bar.sync 1, 64;" ::: "memory"); b[t - 32] = s[63 - t]; } }""",
    (1,),
    (64,),
    lambda: [np.arange(32, dtype=np.int32), np.zeros(32, np.int32)],
    1,
    lambda a: 3 * a[0][::-1],
)
add(
    "last_block_sums",
    """__device__ unsigned done = 0; extern "C" __global__ void k(const float* a, float* part, float* out) {
    __shared__ float s[64]; __shared__ bool last; int t = threadIdx.x; s[t] = a[blockIdx.x * 64 + t]; __syncthreads();
    if (t == 0) { float v = 0; for (int i = 0; i < 64; ++i) v += s[i]; part[blockIdx.x] = v; __threadfence();
      last = atomicAdd(&done, 1u) == gridDim.x - 1; } __syncthreads();
    if (last && t == 0) { float v = 0; for (int i = 0; i < gridDim.x; ++i) v += part[i]; *out = v; } }""",
    (6,),
    (64,),
    lambda: [floats(384), zeros(6), zeros(1)],
    2,
    lambda a: a[0].sum(keepdims=True),
    tolerance=1e-4,
)
add(
    "three_dimensions",
    """void k(int* a) { int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y,
    z = blockIdx.z * blockDim.z + threadIdx.z; a[(z * 4 + y) * 6 + x] = x + 10 * y + 100 * z + 1000 * blockIdx.z; }""",
    (2, 2, 3),
    (3, 2, 2),
    lambda: [np.zeros((6, 4, 6), np.int32)],
    0,
    lambda a: np.fromfunction(lambda z, y, x: x + 10 * y + 100 * z + 1000 * (z // 2), (6, 4, 6)),
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


def half_warps(a: np.ndarray) -> np.ndarray:
    out = a.copy()
    for w in range(3):
        for _ in range(1 + w):
            low = out[32 * w : 32 * w + 16].copy()
            out[32 * w : 32 * w + 16] = low + low[np.arange(16) ^ 8]
        out[32 * w + 16 : 32 * w + 32] = -a[32 * w + 16 : 32 * w + 32]
    return out


def collatz(value: int) -> int:
    count = 0
    while value != 1:
        value, count = (3 * value + 1 if value & 1 else value // 2), count + 1
    return count


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
