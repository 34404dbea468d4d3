"""Our best tensor-core schedules on the simulated h200, beside what a library was recorded to do on an H200.

Products of bfloat16, A[m, k] by B[n, k], as linear layers have them. Library kernels of Hopper are of
`wgmma` on tiles that TMA brings; ours of `wgmma` on tiles that asynchronous copies bring, or of `mma.sync`.
Nothing is fitted here, so every row is unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ekc
from benchmarks.common.recordings import read_table
from benchmarks.simulator.rows import Vector, predict_by_table, predict_constant, predict_watts, score
from ekc.codegen.generate import compile_schedule
from ekc.devices.simulated import specs
from ekc.devices.simulated.launch_counts import profile_kernel
from ekc.devices.simulated.operating_point import (
    SteadyState,
    compute_steady_state,
    compute_work,
)
from ekc.errors import InvalidInput
from ekc.ir.hardware.wgmma import WGMMA_FAMILIES
from ekc.ir.schedule import Tensorize

FILE = "h200_gemm_power.csv.gz"
TARGET = "h200"
TRIALS = 64
GROUPED = {p.name for p in WGMMA_FAMILIES}
"""Instructions that a warpgroup does together."""
MISSED_W, MISSED_TFLOPS = 150.0, 50.0
"""Below this power above this rate, the meter had not seen the kernel: it says what the idle board draws."""
LONG_S = 100e-6
"""Seconds of a kernel from which on its recorded power is used. For shorter ones it is too low: at 600 to
700 TFLOP/s its median is 233 W below 15 us and 691 W from 100 us on, as if the board had waited between
launches."""
NEIGHBOURS, FEWEST = 25, 5
"""Recorded rows that a kernel is compared with, and the least that say anything, of rows as of kernels."""
ALIKE = 2.0
"""Rows are similar where both rates agree within this factor."""
POWER_BAR = 0.10
SLICES, STRIDE = 20, 13
"""Shapes are drawn from so many slices of the rows, which are taken in strides."""
LARGEST = 2**31
"""Elements of a tensor: beyond, a kernel of ours would need other indices."""


@dataclass(frozen=True)
class Row:
    """One recorded library kernel."""

    m: int
    n: int
    k: int
    seconds: float
    power_w: float

    @property
    def flops(self) -> float:
        """Operations of the product."""
        return 2.0 * self.m * self.n * self.k

    @property
    def least_bytes(self) -> float:
        """Factors read once, result written once."""
        return 2.0 * (self.m * self.k + self.n * self.k + self.m * self.n)


def read(data: Path) -> list[Row]:
    """The rows of bfloat16 whose power was seen by the meter."""
    rows = [
        Row(*(int(x[name]) for name in "mnk"), float(x["time_ms"]) * 1e-3, float(x["power_w"]))
        for x in read_table(data / FILE)
        if x["gemm_dtype"] == "bfloat16"
    ]
    return [row for row in rows if row.power_w > MISSED_W or row.flops < MISSED_TFLOPS * 1e12 * row.seconds]


def sample_rows(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    """One row out of each of `SLICES` equal slices in order of time, or of `count` of these, evenly
    spaced."""
    fit = [row for row in rows if max(row.m * row.n, row.m * row.k, row.n * row.k) < LARGEST]
    fit.sort(key=lambda row: (row.seconds, row.m, row.n, row.k))
    random = np.random.default_rng(seed)
    each = [fit[int(random.choice(part))] for part in np.array_split(np.arange(len(fit)), SLICES)]
    return [each[n * STRIDE % SLICES] for n in range(min(count, SLICES))]


def tune_shape(
    row: Row, trials: int, seed: int, records: Path | None
) -> tuple[ekc.Schedule | None, ekc.Schedule]:
    """The fastest schedule on tensor cores among those tried, and the fastest of all."""
    op = ekc.matmul(row.m, row.n, row.k, dtype="bfloat16", transpose_b=True)
    result = ekc.tune(
        op,
        target=TARGET,
        trials=trials,
        objective="latency",
        seed=seed,
        records=records,
        progress=False,
    )
    found = [t for t in result.trials if t.ok and t.latency_s and _uses_tensor_cores(t.schedule)]
    return (
        min(found, key=lambda trial: trial.latency_s or 0.0).schedule if found else None,
        result.fastest.schedule,
    )


def _uses_tensor_cores(schedule: ekc.Schedule) -> bool:
    return any(s.kind == "tensorize" for s in schedule.steps)


def select_settled(schedule: ekc.Schedule) -> tuple[SteadyState, float]:
    """The state in which the simulated board runs it back to back, asked for its top clock, and board power;
    the seeded residuals left out."""
    spec = specs.H200
    kernel = compile_schedule(schedule, spec.arch, spec.limits())
    state = compute_steady_state(
        spec, compute_work(spec, kernel, profile_kernel(kernel), has_residual=False), spec.boost_mhz
    )
    return state, predict_watts(spec, state)


def measured(row: Row, trials: int, seed: int, records: Path | None) -> dict[str, Any]:
    """One shape: the library's kernel and ours."""
    figures: dict[str, Any] = {
        "shape": [row.m, row.n, row.k],
        "recorded_s": row.seconds,
        "recorded_w": row.power_w,
        "recorded_tflops": row.flops / row.seconds / 1e12,
        "gbytes": row.least_bytes / 1e9,
    }
    schedule, fastest = tune_shape(row, trials, seed, records)
    if not _uses_tensor_cores(fastest):
        figures["without_s"] = select_settled(fastest)[0].latency_s
    if schedule is None:
        return figures
    state, board_w = select_settled(schedule)
    return figures | {
        "simulated_s": state.latency_s,
        "simulated_w": board_w,
        "simulated_tflops": row.flops / state.latency_s / 1e12,
        "clock_mhz": state.clock_mhz,
        "ratio": state.latency_s / row.seconds,
        "parts": any(s.kind == "rfactor" for s in schedule.steps),
        "warpgroup": any(isinstance(s, Tensorize) and s.instruction in GROUPED for s in schedule.steps),
    }


def select_similar(rows: Sequence[Row], kernels: Sequence[dict[str, Any]]) -> Vector:
    """For each kernel of ours the median power of the recorded rows nearest to it in TFLOP/s and in GB/s of
    compulsory traffic; NaN where there are few like it."""
    rates = np.log([(row.flops / row.seconds, row.least_bytes / row.seconds) for row in rows])
    watt = np.array([row.power_w for row in rows])
    medians = []
    for one in kernels:
        at = np.log([one["simulated_tflops"] * 1e12, one["gbytes"] * 1e9 / one["simulated_s"]])
        nearest = np.argsort(np.hypot(*(rates - at).T))[:NEIGHBOURS]
        close = nearest[np.all(np.abs(rates[nearest] - at) <= np.log(ALIKE), axis=1)]
        medians.append(float(np.median(watt[close])) if len(close) >= FEWEST else np.nan)
    return np.array(medians)


def compare(data: Path, count: int, trials: int, seed: int, records: Path | None) -> dict[str, Any]:
    """All figures: shapes, latency ratios and the scores of power."""
    rows = read(data)
    shapes = [measured(row, trials, seed, records) for row in sample_rows(rows, count, seed)]
    shapes.sort(key=lambda one: one["recorded_s"])
    ratios = [one["ratio"] for one in shapes if "ratio" in one]
    if not ratios:
        raise InvalidInput(f"trials: no schedule on tensor cores in {trials} trials of any shape; try more")
    quantiles = dict(zip(("least", "median", "most"), np.quantile(ratios, [0, 0.5, 1]).tolist(), strict=True))
    against = score_power([row for row in rows if row.seconds >= LONG_S], shapes, seed)
    return {
        "shapes": shapes,
        "trials": trials,
        "rows": len(rows),
        "ratio": quantiles,
        "power": against,
        "pass": against is None or against["pass"],
    }


def score_power(rows: Sequence[Row], shapes: Sequence[dict[str, Any]], seed: int) -> dict[str, Any] | None:
    """Simulated power against half of the rows; the other half makes the table and the constant."""
    learn = np.random.default_rng(seed).permutation(len(rows)) < len(rows) // 2
    done = [one for one in shapes if "ratio" in one]
    reference = select_similar([row for row, used in zip(rows, learn, strict=True) if not used], done)
    is_known = ~np.isnan(reference)
    reference, done = reference[is_known], [one for one, kept in zip(done, is_known, strict=True) if kept]
    if len(done) < FEWEST:
        return None
    simulated = np.array([one["simulated_w"] for one in done])
    found = score(simulated, reference)
    simple = _predict_trivially(rows, learn, done)
    return {
        "shipped": found,
        "bias": float(np.median(simulated / reference) - 1.0),
        "trivial": {name: score(values, reference) for name, values in simple.items()},
        "bar": {"median_error": POWER_BAR},
        "pass": found["median_error"] <= POWER_BAR,
    }


def _predict_trivially(
    rows: Sequence[Row], learn: NDArray[np.bool_], done: Sequence[dict[str, Any]]
) -> dict[str, Vector]:
    """Predictions by the other half of the rows: by the rates alone, or a constant."""
    ours = [one["simulated_tflops"] * 1e12 for one in done]
    rates = np.array([*(row.flops / row.seconds for row in rows), *ours])
    watt = np.array([*(row.power_w for row in rows), *np.zeros(len(ours))])
    known = np.array([*learn, *np.zeros(len(ours), dtype=bool)])
    return {
        "table by TFLOP/s": predict_by_table(rates, watt, known)[len(rows) :],
        "constant": predict_constant(watt, known)[len(rows) :],
    }


def format_result(result: dict[str, Any]) -> str:
    """The table of shapes and the scores under it."""
    said = [
        f"tensor cores, h200 (simulated): fastest of {result['trials']} trials with bfloat16 on them,",
        f"against the library's kernel recorded on an H200; {len(result['shapes'])} of {SLICES} shapes",
        "                             time [us]          TFLOP/s              power [W]",
        "     m     n     k   recorded simulated ratio  recorded simulated  recorded simulated",
    ]
    said += [_format_shape(one) for one in result["shapes"]]
    said.append("latency over recorded: " + ", ".join(f"{k} {v:.2f}" for k, v in result["ratio"].items()))
    against = result["power"]
    if against is None:
        return "\n".join(
            [
                *said,
                f"power not scored: fewer than {FEWEST} shapes have recorded rows of like TFLOP/s and GB/s",
            ]
        )
    verdict = "pass" if against["pass"] else "FAIL"
    said.append(f"power against recorded rows of like TFLOP/s and GB/s: {verdict} {against['bar']}")
    for name, one in ({"shipped": against["shipped"]} | against["trivial"]).items():
        rank, error = one["spearman"], one["median_error"]
        said.append(f"    {name:18} rank {rank:.2f}, median error {error:.1%} ({one['rows']} shapes)")
    return "\n".join([*said, f"    simulated over recorded, median {against['bias']:+.1%}"])


def _format_shape(one: dict[str, Any]) -> str:
    m, n, k = one["shape"]
    shape = f"{m:6}{n:6}{k:6} {one['recorded_s'] * 1e6:10.1f}"
    without = f"  {one['without_s'] * 1e6:.1f} without them" if "without_s" in one else ""
    if "ratio" not in one:
        return f"{shape}  no schedule on tensor cores among those tried{without}"
    how = ("wgmma" if one["warpgroup"] else "mma") + (", in parts" if one["parts"] else "")
    return (
        f"{shape}{one['simulated_s'] * 1e6:10.1f}{one['ratio']:6.2f}"
        f"{one['recorded_tflops']:10.1f}{one['simulated_tflops']:10.1f}"
        f"{one['recorded_w']:10.0f}{one['simulated_w']:10.0f}  {how}{without}"
    )
