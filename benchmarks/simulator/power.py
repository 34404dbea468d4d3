"""Power that the simulator settles at, against the recordings that hold power.

Two kernels are written for them: one of nothing but multiply-adds, and one that only copies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.recordings import read_table
from benchmarks.simulator import h200
from benchmarks.simulator.rows import (
    CLOCKS,
    FMA,
    SIDE,
    Pairs,
    Vector,
    compile_work,
    compute_works,
    get_kernel_work,
    get_recorded,
    pair_rows,
    predict_by_table,
    predict_constant,
    predict_watts,
    read,
    run,
    score,
    select_half,
)
from ekc.codegen.cache import compile_cached
from ekc.codegen.compiled import CompiledKernel, Launch
from ekc.devices.simulated import specs

POWER_BAR = 0.10
FMA_BAR = 0.06
ACTIVITIES = np.linspace(0.3, 1.2, 46)
COPY_BYTES = 2**30
ALIKE_RATE, STREAMING_FLOPS = 1.1, 60e12
"""Recorded kernels are like a copy where their bytes a second agree within this factor, and they do at most
so many operations a second."""
FLOPS = 2.0 * SIDE**3
THREADS, BLOCKS_PER_SM, TRIPS = 256, 16, 4096
FMA_TEXT = """
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


def score_powers(
    what: str,
    predicted: Vector,
    real: Vector,
    seconds: Vector,
    learn: NDArray[np.bool_],
) -> Any:
    """Score powers on the rows that were not learned from: ours, and those of trivial predictors."""
    learnt = {
        "constant": predict_constant(real, learn),
        "table by TFLOP/s": predict_by_table(FLOPS / seconds, real, learn),
    }
    found = score(predicted[~learn], real[~learn])
    return {
        "what": what,
        "how": "compiled",
        "shipped": found,
        "trivial": {name: score(value[~learn], real[~learn]) for name, value in learnt.items()},
        "bar": {"median_error": POWER_BAR},
        "pass": found["median_error"] <= POWER_BAR,
    }


def predict_powers(pairs: Pairs, asked_mhz: float | None) -> Vector:
    """Board power that the simulator settles at, asked for its rows' clocks or one clock for all."""
    spec = CLOCKS.spec
    return np.array([predict_watts(spec, run(spec, work, asked_mhz or row.clock_mhz)) for row, work in pairs])


def score_fma(data: Path) -> dict[str, Any]:
    """Median error of the FMA kernel's power over the A100's clocks, every clock predicted by the others.

    What it multiplies is not recorded, and operands that hardly change cost less than random ones: one
    factor on the energy of its events is fitted to the other clocks."""
    rows = [row for row in read_table(data / FMA.file) if row["gpu"].startswith("A100")]
    work = get_kernel_work(FMA.spec, make_fma_kernel(FMA.spec.arch, FMA.spec.sms))
    assert work is not None
    clocks = np.array([float(row["clock_mhz"]) for row in rows])
    real = np.array([float(row["power_w"]) for row in rows])
    predicted = np.array(
        [[predict_watts(FMA.spec, run(FMA.spec, work, clock, a)) for clock in clocks] for a in ACTIVITIES]
    )
    off = np.abs(predicted / real - 1.0)
    chosen = [int(np.argmin(np.delete(off, n, axis=1).mean(axis=1))) for n in range(len(rows))]
    error = np.array([off[best, n] for n, best in enumerate(chosen)])
    constant = np.array([np.median(np.delete(real, n)) / real[n] - 1.0 for n in range(len(rows))])
    used = ACTIVITIES[chosen]
    return {
        "what": "power, FMA kernel over clocks",
        "by": f"shipped, activity {used.min():.2f} to {used.max():.2f}",
        "rows": len(rows),
        "score": float(np.median(error)),
        "most": float(error.max()),
        "constant": float(np.median(np.abs(constant))),
        "bar": FMA_BAR,
        "pass": bool(np.median(error) <= FMA_BAR),
    }


def score_streaming(data: Path) -> dict[str, Any]:
    """Power of a copy on the simulated h200, over the median of recorded library kernels that move like many
    bytes a second and compute little. A copy of ours is no product, so no bar judges it."""
    spec = specs.H200
    work = get_kernel_work(spec, make_copy_kernel(spec.arch, COPY_BYTES))
    assert work is not None
    state = run(spec, work, spec.boost_mhz)
    rate = 2.0 * COPY_BYTES / state.latency_s
    like = [
        row.power_w
        for row in h200.read(data)
        if row.seconds >= h200.LONG_S
        and abs(np.log(row.least_bytes / row.seconds / rate)) <= np.log(ALIKE_RATE)
        and row.flops / row.seconds <= STREAMING_FLOPS
    ]
    low, middle, high = np.quantile(like, [0.25, 0.5, 0.75]) if like else [np.nan] * 3
    return {
        "what": f"power, copy on h200 (simulated), W over {len(like)} recorded",
        "by": f"shipped, {predict_watts(spec, state):.0f} W at {rate / 1e12:.1f} TB/s",
        "score": float(predict_watts(spec, state) / middle),
        "interval": (float(low / middle), float(high / middle)),
    }


def score_all(data: Path, sampled: Pairs, learn: NDArray[np.bool_], seed: int) -> list[Any]:
    """The two recordings of products that hold power, of the A100."""
    rows = read(data, CLOCKS)
    over = pair_rows(rows, compute_works(CLOCKS.spec, rows, compile_work))
    half = select_half([row for row, _ in over], seed)
    real = [np.array([row.power_w for row, _ in one]) for one in (over, sampled)]
    return [
        score_powers(
            "power, GEMM over clocks, a100 (simulated)",
            predict_powers(over, None),
            real[0],
            get_recorded(over),
            half,
        ),
        score_powers(
            "power, GEMM capped at 250 W, a100 (simulated)",
            predict_powers(sampled, CLOCKS.spec.boost_mhz),
            real[1],
            get_recorded(sampled),
            learn,
        ),
    ]


def make_copy_kernel(arch: str, size: int) -> CompiledKernel:
    """Copy `size` bytes, 16 a thread."""
    launch = Launch("copy", (size // (16 * THREADS), 1, 1), (THREADS, 1, 1), 0, ("x", "y"), (size, size))
    return _make_kernel(COPY_TEXT.replace("THREADS", str(THREADS)), arch, launch, 0.0, 2.0 * size)


def make_fma_kernel(arch: str, sms: int) -> CompiledKernel:
    """Full SMs, 32 independent multiply-adds a trip, no memory to speak of."""
    text = FMA_TEXT.replace("THREADS", str(THREADS)).replace("TRIPS", str(TRIPS))
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
