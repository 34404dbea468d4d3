"""The `ptxas -v` log, as NVRTC writes it."""

from __future__ import annotations

import pytest

from ekc.codegen import nvrtc
from ekc.codegen import nvrtc as ptxas_log
from ekc.codegen.compiled import Resources

TWO = """
extern "C" __global__ void shared_one(float* a) {
  __shared__ float s[256];
  s[threadIdx.x] = a[threadIdx.x]; __syncthreads(); a[threadIdx.x] = s[255 - threadIdx.x];
}
template <int N> __global__ void local_one(float* a) {
  float b[N];
  for (int i = 0; i < N; ++i) b[i] = a[i];
  a[0] = b[(int)a[4]] + b[(int)a[5]];
}
template __global__ void local_one<300>(float*);
"""
SPILLING = """
extern "C" __global__ void __launch_bounds__(1024, 2) spilling(float* a) {
  float r[128];
  #pragma unroll
  for (int i = 0; i < 128; ++i) r[i] = a[i * 1024 + threadIdx.x];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 128; ++i) a[i * 512 + threadIdx.x] = r[127 - i] * r[(i * 7) % 128];
}
"""
CALLED = """
__device__ __noinline__ float far(float* a, int n) {
  float b[32];
  for (int i = 0; i < 32; ++i) b[i] = a[i * n];
  return b[n & 31];
}
extern "C" __global__ void caller(float* a) { a[0] = far(a, threadIdx.x); }
"""


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100"])
def test_each_kernel_of_a_log_has_its_own_resources(arch: str) -> None:
    found = nvrtc.compile(TWO, arch).resources
    assert set(found) == {"shared_one", "_Z9local_oneILi300EEvPf"}
    assert found["shared_one"].shared_bytes == 1024
    assert found["shared_one"].stack_bytes == 0
    assert found["_Z9local_oneILi300EEvPf"].stack_bytes == 1200
    assert found["_Z9local_oneILi300EEvPf"].shared_bytes == 0


def test_spills_are_read() -> None:
    found = nvrtc.compile(SPILLING).resources["spilling"]
    assert found.registers == 32
    assert found.spill_store_bytes > 0
    assert found.spill_load_bytes > 0


def test_a_called_function_is_no_kernel() -> None:
    output = nvrtc.compile(CALLED)
    assert set(output.resources) == {"caller"}


def test_the_wording_of_the_log() -> None:
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
ptxas         .     16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Function properties for called
ptxas         .     64 bytes stack frame, 99 bytes spill stores, 99 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 80 bytes cumulative stack size, 2048 bytes smem"""
    assert ptxas_log.parse_log(log) == {"k": Resources(40, 2048, 8, 12, 80)}


def test_a_log_of_warnings_alone_is_empty() -> None:
    assert ptxas_log.parse_log("kernel.cu(2): warning #177-D: never referenced\n") == {}
