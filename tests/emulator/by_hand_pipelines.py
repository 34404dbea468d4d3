"""A pipeline of tiles that feeds products of warpgroups, statement by statement, so that slips can be made."""

# ruff: noqa: E501 (CUDA text)
from __future__ import annotations

from typing import Any

import numpy as np

from tests.emulator.case import Case, floats, zeros

REGISTERS = ", ".join(f"%{i}" for i in range(32))
TIED = ", ".join(f'"+f"(d[{i}])' for i in range(32))

HELPERS = f"""
__device__ __forceinline__ unsigned long long tile(unsigned at, unsigned lead, unsigned stride) {{
  return (at & 0x3FFFF) >> 4 | (unsigned long long)(lead >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 | 1ull << 62; }}
__device__ __forceinline__ void copy16(unsigned to, const unsigned short* from) {{
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory"); }}
__device__ __forceinline__ void commit_copies() {{ asm volatile("cp.async.commit_group;" ::: "memory"); }}
template <int N> __device__ __forceinline__ void wait_copies() {{ asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory"); }}
__device__ __forceinline__ void show() {{ asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }}
__device__ __forceinline__ void arrive() {{ asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }}
__device__ __forceinline__ void commit() {{ asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }}
template <int N> __device__ __forceinline__ void wait() {{ asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory"); }}
__device__ __forceinline__ void multiply(float (&d)[32], unsigned long long a, unsigned long long b, int keep = 1) {{
  asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %34, 0;\\nwgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {{{REGISTERS}}}, %32, %33, p, 1, 1, 0, 1;\\n}}"
    : {TIED} : "l"(a), "l"(b), "r"(keep) : "memory"); }}
__device__ __forceinline__ void hold(float (&d)[32]) {{ asm volatile("" : {TIED}); }}
"""

PIPELINE = (
    HELPERS
    + """
extern "C" __global__ void k(const unsigned short* a, const unsigned short* b, float* c, int n) {
  __shared__ __align__(1024) unsigned char s[STAGES][2][8192];
  __shared__ __align__(1024) unsigned char u[STAGES][8192];
  const int t = threadIdx.x, g = t / 128;
  auto load = [&](int i) {
    if (i < n) {
      for (int j = t; j < 1024; j += 256) { const int r = j / 8, q = j % 8;
        copy16((unsigned)__cvta_generic_to_shared(&s[i % STAGES][r / 64][r % 64 * 128 + (q ^ r % 8) * 16]), a + (r * n + i) * 64 + q * 8); }
      for (int j = t; j < 512; j += 256) { const int k = j / 8, q = j % 8;
        copy16((unsigned)__cvta_generic_to_shared(&u[i % STAGES][k * 128 + (q ^ k % 8) * 16]), b + (i * 64 + k) * 64 + q * 8); }
    }
    commit_copies(); };
  float d[32];
  for (int i = 0; i < 32; ++i) d[i] = 0;
  load(0);
  for (int i = 0; i < n; ++i) {
    wait_copies<0>();
    show();
    __syncthreads();
    load(i + 1);
    const unsigned x = (unsigned)__cvta_generic_to_shared(s[i % STAGES][g]), y = (unsigned)__cvta_generic_to_shared(u[i % STAGES]);
    arrive();
    for (int j = 0; j < 4; ++j) multiply(d, tile(x + 32 * j, 16, 1024), tile(y + 2048 * j, 8192, 1024));
    commit();
    wait<KEPT>();
  }
  wait<0>();
  for (int i = 0; i < 32; ++i) c[(t / 32 * 16 + i / 2 % 2 * 8 + t % 32 / 4) * 64 + i / 4 * 8 + t % 4 * 2 + i % 2] = d[i]; }
"""
)


def pipeline(stages: int = 3, kept: int = 1) -> Case:
    """128 x 64 of a product in steps of 64; so many tiles, and products that a step leaves in flight."""
    source = PIPELINE.replace("STAGES", str(stages)).replace("KEPT", str(kept))

    def arguments() -> list[Any]:
        a, b = floats(128, 320).astype(np.float16), (floats(320, 64) + 1).astype(np.float16)
        return [a, b, zeros(128, 64), 5]

    def expected(args: list[Any]) -> np.ndarray:
        return args[0].astype(np.float64) @ args[1].astype(np.float64)

    return Case(
        f"{stages}-{kept}", source, (2,), (256,), arguments, 2, expected, arch="sm_90a", tolerance=1e-3
    )
