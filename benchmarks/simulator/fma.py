"""One kernel of nothing but multiply-adds, for the recorded power of an FP32 FMA kernel over clocks, and one
that only copies."""

from __future__ import annotations

from ekc.codegen.cache import compile_cached
from ekc.codegen.compiled import CompiledKernel, Launch

THREADS, BLOCKS_PER_SM, TRIPS = 256, 16, 4096
TEXT = """
extern "C" __global__ void __launch_bounds__(THREADS) fma32(const float* __restrict__ x, float* y) {
    float a[16];
    const int at = blockIdx.x * THREADS + threadIdx.x;
    #pragma unroll
    for (int i = 0; i < 16; ++i) a[i] = x[i];
    const float b = x[16], c = x[17];
    #pragma unroll 1
    for (int trip = 0; trip < TRIPS; ++trip) {
        #pragma unroll
        for (int i = 0; i < 16; ++i) a[i] = a[i] * b + c;
        #pragma unroll
        for (int i = 0; i < 16; ++i) a[i] = a[i] * c + b;
    }
    float sum = 0.0f;
    #pragma unroll
    for (int i = 0; i < 16; ++i) sum += a[i];
    y[at] = sum;
}
"""
COPY_TEXT = """
extern "C" __global__ void __launch_bounds__(THREADS) copy(const float4* __restrict__ x, float4* y) {
    const int at = blockIdx.x * THREADS + threadIdx.x;
    y[at] = x[at];
}
"""


def make_copy_kernel(arch: str, size: int) -> CompiledKernel:
    """Copy `size` bytes, 16 a thread."""
    launch = Launch("copy", (size // (16 * THREADS), 1, 1), (THREADS, 1, 1), 0, ("x", "y"), (size, size))
    return _make_kernel(COPY_TEXT.replace("THREADS", str(THREADS)), arch, launch, 0.0, 2.0 * size)


def make_fma_kernel(arch: str, sms: int) -> CompiledKernel:
    """Full SMs, 32 independent multiply-adds a trip, no memory to speak of."""
    text = TEXT.replace("THREADS", str(THREADS)).replace("TRIPS", str(TRIPS))
    threads = sms * BLOCKS_PER_SM * THREADS
    launch = Launch("fma32", (sms * BLOCKS_PER_SM, 1, 1), (THREADS, 1, 1), 0, ("x", "y"), (72, 4 * threads))
    return _make_kernel(text, arch, launch, 2.0 * 32 * TRIPS * threads, 4.0 * threads)


def _make_kernel(text: str, arch: str, launch: Launch, flops: float, min_bytes: float) -> CompiledKernel:
    """Compile `text` for one launch. `flops`, `min_bytes`: operations and least bytes moved of a call."""
    out = compile_cached(text, arch)
    return CompiledKernel(
        name=launch.name,
        cuda_source=text,
        ptx=out.ptx,
        cubin=out.cubin,
        arch=out.arch,
        log=out.log,
        nvrtc_version=out.nvrtc_version,
        launches=(launch,),
        resources=(out.resources[launch.name],),
        workspace_bytes=0,
        flops=flops,
        min_bytes=min_bytes,
    )
