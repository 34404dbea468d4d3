"""Power that the simulator settles at, against the recordings that hold power."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulator.fma import make_fma_kernel
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

POWER_BAR = 0.10
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


def score_fma(data: Path) -> Any:
    """The FMA kernel of the A100 over its clocks.

    What it multiplies is not recorded, and operands that hardly change cost less than random ones: one
    factor on the energy of its events is fitted on every other clock. The clocks between score."""
    rows = [row for row in read_table(data / FMA.file) if row["gpu"].startswith("A100")]
    work = get_kernel_work(FMA.spec, make_fma_kernel(FMA.spec.arch, FMA.spec.sms))
    assert work is not None
    clocks = np.array([float(row["clock_mhz"]) for row in rows])
    real = np.array([float(row["power_w"]) for row in rows])
    learn = np.arange(len(rows)) % 2 == 0

    def predicted(activity: float) -> Vector:
        return np.array([predict_watts(FMA.spec, run(FMA.spec, work, clock, activity)) for clock in clocks])

    def loss(activity: float) -> float:
        return float(np.mean(np.abs(np.log(predicted(activity)[learn] / real[learn]))))

    activity = min(np.linspace(0.3, 1.2, 46).tolist(), key=loss)
    line = score_powers(
        "power, FMA kernel over clocks, a100 (simulated)",
        predicted(activity),
        real,
        1.0 / clocks,
        learn,
    )
    as_random = asdict(score(predicted(1.0)[~learn], real[~learn]))
    return line | {"how": f"compiled, activity {activity:.2f}", "random data": as_random}


def score_all(data: Path, sampled: Pairs, learn: NDArray[np.bool_], seed: int) -> list[Any]:
    """The three recordings that hold power, all of the A100."""
    rows = read(data, CLOCKS)
    over = pair_rows(rows, compute_works(CLOCKS.spec, rows, compile_work))
    half = select_half([row for row, _ in over], seed)
    real = [np.array([row.power_w for row, _ in one]) for one in (over, sampled)]
    return [
        score_fma(data),
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
