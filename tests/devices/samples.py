"""Known kernels, compiled by NVRTC from text."""

from __future__ import annotations

from functools import cache

from ekc.codegen import nvrtc
from ekc.codegen.compiled import CompiledKernel, Footprint, Launch

_SGEMM = """
extern "C" __global__ __launch_bounds__(256) void sgemm(const float* __restrict__ A,
    const float* __restrict__ B, float* __restrict__ C) {
  __shared__ float As[2][8][132];
  __shared__ float Bs[2][8][128];
  const int N = SIZE, t = threadIdx.x, tx = t % 16, ty = t / 16;
  float acc[8][8] = {};
  const float* a = A + (blockIdx.y * 128 + t / 2) * N + (t % 2) * 4;
  const float* b = B + (t / 32) * N + blockIdx.x * 128 + (t % 32) * 4;
  float4 ra = *(const float4*)a, rb = *(const float4*)b;
  for (int k = 0; k < N / 8; ++k) {
    const int s = k & 1;
    As[s][(t % 2) * 4 + 0][t / 2] = ra.x; As[s][(t % 2) * 4 + 1][t / 2] = ra.y;
    As[s][(t % 2) * 4 + 2][t / 2] = ra.z; As[s][(t % 2) * 4 + 3][t / 2] = ra.w;
    *(float4*)&Bs[s][t / 32][(t % 32) * 4] = rb;
    __syncthreads();
    a += 8; b += 8 * N;
    if (k + 1 < N / 8) { ra = *(const float4*)a; rb = *(const float4*)b; }
#pragma unroll
    for (int q = 0; q < 8; ++q) {
      float x[8], y[8];
      *(float4*)&x[0] = *(float4*)&As[s][q][ty * 4]; *(float4*)&x[4] = *(float4*)&As[s][q][64 + ty * 4];
      *(float4*)&y[0] = *(float4*)&Bs[s][q][tx * 4]; *(float4*)&y[4] = *(float4*)&Bs[s][q][64 + tx * 4];
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) acc[i][j] += x[i] * y[j];
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; j += 4)
      *(float4*)&C[(blockIdx.y * 128 + (i / 4) * 64 + ty * 4 + i % 4) * N + blockIdx.x * 128
                   + (j / 4) * 64 + tx * 4] = *(float4*)&acc[i][j];
}
"""

_NAIVE = """
extern "C" __global__ void naive(const float* __restrict__ A, const float* __restrict__ B, float* C) {
  const int N = SIZE, COLUMN = blockIdx.x * 32 + threadIdx.x, ROW = blockIdx.y * 32 + threadIdx.y;
  float acc = 0.0f;
  for (int k = 0; k < N; ++k) acc += A[i * N + k] * B[k * N + j];
  C[i * N + j] = acc;
}
"""

_COPY = """
extern "C" __global__ void copy(const float4* __restrict__ x, float4* y) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  y[i] = x[i];
}
"""

_SCATTERED_COPY = """
extern "C" __global__ void copy(const float* __restrict__ x, float* y) {
  const int row = blockIdx.x / 1024 * 1024 + threadIdx.x, column = blockIdx.x % 1024;
#pragma unroll
  for (int q = 0; q < 4; ++q) y[(row + q * 256) * 1024 + column] = x[(row + q * 256) * 1024 + column];
}
"""

_MATVEC = """
extern "C" __global__ void matvec(const float4* __restrict__ A, const float4* __restrict__ x, float* y) {
  const float4* row = A + (blockIdx.x * 8 + threadIdx.x / 32) * (SIZE / 4);
  float acc = 0.0f;
#pragma unroll 4
  for (int k = 0; k < SIZE / 128; ++k) {
    const float4 a = row[k * 32 + threadIdx.x % 32], b = x[k * 32 + threadIdx.x % 32];
    acc += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
  }
#pragma unroll
  for (int s = 16; s; s /= 2) acc += __shfl_xor_sync(0xffffffff, acc, s);
  if (threadIdx.x % 32 == 0) y[blockIdx.x * 8 + threadIdx.x / 32] = acc;
}
"""


@cache
def _compiled(source: str, size: int, arch: str) -> nvrtc.NvrtcOutput:
    return nvrtc.compile(source.replace("SIZE", str(size)), arch)


def _kernel(source: str, size: int, arch: str, launch: Launch, flops: float, bytes_: float) -> CompiledKernel:
    out = _compiled(source, size, arch)
    return CompiledKernel(
        launch.name,
        f"// sample\n{out.source}",
        out.ptx,
        out.cubin,
        arch,
        out.log,
        out.nvrtc_version,
        (launch,),
        (out.resources[launch.name],),
        0,
        flops,
        bytes_,
    )


def _panels(n: int, blocks: int, tile: int) -> tuple[Footprint, ...]:
    """Rows of A, columns of B, tiles of C, block.x running over columns."""
    whole = 4 * n * n
    panel = 4.0 * tile * n
    return (
        Footprint("A", "load", whole, panel, ((blocks, False), (blocks, True))),
        Footprint("B", "load", whole, panel, ((blocks, True), (blocks, False))),
        Footprint("C", "store", whole, 4.0 * tile * tile, ((blocks, True), (blocks, True))),
    )


def sgemm(n: int, arch: str = "sm_80", *, conflicts: bool = False, blocks_per_sm: int = 1) -> CompiledKernel:
    """128x128x8 tile, 8x8 per thread, double buffered; with `conflicts` its lanes access the same banks, and
    the result is not the product. With four blocks on an SM a thread has 64 registers, and spills."""
    text = _SGEMM.replace("tx * 4]", "tx * 32 % 128 + tx / 4]") if conflicts else _SGEMM
    grid = (n // 128, n // 128, 1)
    launch = Launch(
        "sgemm", grid, (256, 1, 1), 0, ("A", "B", "C"), (4 * n * n,) * 3, _panels(n, n // 128, 128)
    )
    if blocks_per_sm > 1:
        text = text.replace("__launch_bounds__(256)", f"__launch_bounds__(256, {blocks_per_sm})")
    return _kernel(text, n, arch, launch, 2.0 * n**3, 12.0 * n * n)


def naive(n: int, arch: str = "sm_80", *, coalesced: bool = True) -> CompiledKernel:
    """One thread per output; uncoalesced where threadIdx.x runs over rows."""
    text = _NAIVE.replace("COLUMN", "j" if coalesced else "i").replace("ROW", "i" if coalesced else "j")
    grid = (n // 32, n // 32, 1)
    launch = Launch("naive", grid, (32, 32, 1), 0, ("A", "B", "C"), (4 * n * n,) * 3, _panels(n, n // 32, 32))
    return _kernel(text, n, arch, launch, 2.0 * n**3, 12.0 * n * n)


def copy(n: int, arch: str = "sm_80", *, coalesced: bool = True) -> CompiledKernel:
    """n floats from x to y, 16 bytes a lane; uncoalesced: 4 bytes each, at a distance of 4 KiB."""
    blocks = n // 1024
    loops = ((blocks, True),)
    footprints = tuple(
        Footprint(t, kind, 4 * n, 4096.0, loops) for t, kind in (("x", "load"), ("y", "store"))
    )
    launch = Launch("copy", (blocks, 1, 1), (256, 1, 1), 0, ("x", "y"), (4 * n, 4 * n), footprints)
    return _kernel(_COPY if coalesced else _SCATTERED_COPY, n, arch, launch, 0.0, 8.0 * n)


def matvec(n: int, arch: str = "sm_80") -> CompiledKernel:
    """A warp per row, float4 loads."""
    loops = ((n // 8, True),)
    launch = Launch(
        "matvec",
        (n // 8, 1, 1),
        (256, 1, 1),
        0,
        ("A", "x", "y"),
        (4 * n * n, 4 * n, 4 * n),
        (
            Footprint("A", "load", 4 * n * n, 32.0 * n, loops),
            Footprint("x", "load", 4 * n, 4.0 * n, ((n // 8, False),)),
            Footprint("y", "store", 4 * n, 32.0, loops),
        ),
    )
    return _kernel(_MATVEC, n, arch, launch, 2.0 * n * n, 4.0 * n * n)
