"""Power that the simulator settles at, against the recordings that hold power."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulator import h200
from benchmarks.simulator.fma import make_copy_kernel, make_fma_kernel
from benchmarks.simulator.rows import (
    CLOCKS,
    FMA,
    SIDE,
    Pairs,
    compile_work,
    compute_works,
    get_kernel_work,
    pair_rows,
    read,
    read_table,
    select_half,
)
from benchmarks.simulator.scores import (
    Vector,
    get_recorded,
    predict_by_table,
    predict_constant,
    predict_watts,
    run,
    score,
)
from ekc.devices.simulated import specs

POWER_BAR = 0.10
FMA_BAR = 0.06
ACTIVITIES = np.linspace(0.3, 1.2, 46)
COPY_BYTES = 2**30
ALIKE_RATE, STREAMING_FLOPS = 1.1, 60e12
"""Recorded kernels are like a copy where their bytes a second agree within this factor, and they do at most
so many operations a second."""
FLOPS = 2.0 * SIDE**3


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
        "shipped": asdict(found),
        "trivial": {name: asdict(score(value[~learn], real[~learn])) for name, value in learnt.items()},
        "bar": {"median_error": POWER_BAR},
        "pass": found.median_error <= POWER_BAR,
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
