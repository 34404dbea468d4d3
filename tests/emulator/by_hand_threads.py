"""CUDA kernels by hand: threads that meet, exchange and part."""

# ruff: noqa: E501 (CUDA text)
from __future__ import annotations

import numpy as np

from tests.emulator.case import Case, catalogue, floats, rng, zeros

CASES: list[Case] = []
add = catalogue(CASES)

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
    lambda: [rng().integers(0, 256, 5000).astype(np.uint8), np.zeros(256, np.uint32), 5000],
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
    lambda: [rng().integers(-9, 9, 384).astype(np.int32), np.zeros(384, np.int32)],
    1,
    lambda a: a[0].reshape(3, 128).cumsum(1).reshape(-1),
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
    lambda: [rng().integers(-5, 5, 32).astype(np.int32), np.zeros(32, np.int32), np.zeros(1, np.int32)],
    1,
    lambda a: np.pad(a[0][a[0] > 0], (0, int((a[0] <= 0).sum()))),
)
add(
    "switch_table",
    """void k(const int* a, int* b) { int t = threadIdx.x, v = a[t];
    switch (v) { case 0: b[t] = 5; break; case 1: b[t] = t * t; break; case 2: b[t] = -t; break; case 3: b[t] = t ^ 21; break;
    case 4: b[t] = t % 7; break; case 5: b[t] = 99; break; case 6: b[t] = t + v; break; default: b[t] = -1; } }""",
    (1,),
    (64,),
    lambda: [rng().integers(0, 9, 64).astype(np.int32), np.zeros(64, np.int32)],
    1,
    lambda a: np.array([[5, t * t, -t, t ^ 21, t % 7, 99, t + 6, -1, -1][v] for t, v in enumerate(a[0])]),
)
add(
    "named_barriers",
    """void k(const int* a, int* b) { __shared__ int s[128]; int t = threadIdx.x;
    if (t < 64) { s[t] = a[t]; asm volatile("bar.sync 1, 64;" ::: "memory"); b[t] = s[63 - t]; }
    else { s[t] = a[t] * 2; asm volatile("bar.sync 2, 64;" ::: "memory"); b[t] = s[191 - t]; } }""",
    (2,),
    (128,),
    lambda: [rng().integers(0, 99, 128).astype(np.int32), np.zeros(128, np.int32)],
    1,
    lambda a: np.r_[a[0][:64][::-1], 2 * a[0][64:][::-1]],
)
add(
    "sync_count",
    """void k(const int* a, int* b) { int n = __syncthreads_count(a[threadIdx.x] > 0);
    b[threadIdx.x] = n * 10 + __syncthreads_or(a[threadIdx.x] > 3) + 2 * __syncthreads_and(a[threadIdx.x] > -9); }""",
    (1,),
    (70,),
    lambda: [rng().integers(-5, 5, 70).astype(np.int32), np.zeros(70, np.int32)],
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
    "add_by_compare_and_swap",
    """void k(const float* a, double* sum) { unsigned long long* p = (unsigned long long*)sum; unsigned long long old = *p, was;
    do { was = old; old = atomicCAS(p, was, __double_as_longlong(a[blockIdx.x * 64 + threadIdx.x] + __longlong_as_double(was)));
    } while (was != old); }""",
    (3,),
    (64,),
    lambda: [floats(192), np.zeros(1)],
    1,
    lambda a: a[0].astype(np.float64).sum(keepdims=True),
)
add(
    "greatest_if_greater",
    """void k(const int* a, int* most) { int v = a[blockIdx.x * 64 + threadIdx.x]; if (v > *most) atomicMax(most, v); }""",
    (3,),
    (64,),
    lambda: [rng().integers(1, 99, 192).astype(np.int32), np.zeros(1, np.int32)],
    1,
    lambda a: a[0].max(keepdims=True),
)
add(
    "redux_and_match",
    """void k(const int* a, int* b) { int t = threadIdx.x; int m = __reduce_max_sync(~0u, a[t]);
    unsigned s = __match_any_sync(~0u, a[t]); b[t] = m * 100 + __popc(s); }""",
    (1,),
    (64,),
    lambda: [rng().integers(0, 6, 64).astype(np.int32), np.zeros(64, np.int32)],
    1,
    lambda a: np.concatenate([w.max() * 100 + (w[:, None] == w).sum(1) for w in a[0].reshape(2, 32)]),
)
add(
    "shuffle_in_a_loop_of_some_lanes",
    """void k(const int* a, int* b) { int t = threadIdx.x, v = a[t];
    if (t % 32 < 16) { for (int i = 0; i < 1 + t / 32; ++i) v += __shfl_xor_sync(0xffffu, v, 8); } else v = -v; b[t] = v; }""",
    (2,),
    (96,),
    lambda: [rng().integers(0, 9, 96).astype(np.int32), np.zeros(96, np.int32)],
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
    "exit_before_barrier",
    """void k(const int* a, int* b) { __shared__ int s[96]; int t = threadIdx.x; if (t >= 50) return;
    s[t] = a[t]; __syncthreads(); b[t] = s[49 - t] + 100 * __syncthreads_count(a[t] > 4); }""",
    (2,),
    (96,),
    lambda: [rng().integers(0, 9, 96).astype(np.int32), np.zeros(96, np.int32)],
    1,
    lambda a: np.r_[a[0][:50][::-1] + 100 * (a[0][:50] > 4).sum(), np.zeros(46, int)],
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
