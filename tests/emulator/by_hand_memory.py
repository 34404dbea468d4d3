"""CUDA kernels by hand: global, shared, local and constant memory."""

# ruff: noqa: E501 (CUDA text)
from __future__ import annotations

import numpy as np

from tests.emulator.case import Case, catalogue, floats, rng, zeros

CASES: list[Case] = []
add = catalogue(CASES)

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
    "local_array",
    """void k(const int* a, int* b) { int v[16]; int t = threadIdx.x;
    for (int i = 0; i < 16; ++i) v[(a[t] + i) & 15] = i * t; b[t] = v[t & 15]; }""",
    (1,),
    (64,),
    lambda: [rng().integers(0, 16, 64).astype(np.int32), np.zeros(64, np.int32)],
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
    "three_dimensions",
    """void k(int* a) { int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y,
    z = blockIdx.z * blockDim.z + threadIdx.z; a[(z * 4 + y) * 6 + x] = x + 10 * y + 100 * z + 1000 * blockIdx.z; }""",
    (2, 2, 3),
    (3, 2, 2),
    lambda: [np.zeros((6, 4, 6), np.int32)],
    0,
    lambda a: np.fromfunction(lambda z, y, x: x + 10 * y + 100 * z + 1000 * (z // 2), (6, 4, 6)),
)
