"""Errors of predictions against recordings, and those of trivial predictors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import spearmanr

from benchmarks.simulator.rows import LATENCY, Pairs, Recording, Work, stack_works
from ekc.devices.simulated import power
from ekc.devices.simulated.latency import FITTED_CONSTANTS, LatencyConstants, estimate_latency
from ekc.devices.simulated.operating_point import KernelWork as Todo
from ekc.devices.simulated.operating_point import SteadyState, find_steady_state
from ekc.devices.simulated.specs import GpuSpec

Vector = NDArray[np.float64]
TABLE_ROWS = 8
"""Rows of the table that predicts power from TFLOP/s."""
EVALUATIONS = 150


@dataclass(frozen=True)
class Score:
    """Predictions against recordings."""

    rows: int
    spearman: float
    median_error: float | None
    """None for a predictor that only ranks."""


@dataclass(frozen=True)
class Fit:
    """Rates of the latency model, and the clocks of recordings that do not hold theirs."""

    rates: LatencyConstants
    clock_shares: tuple[float, ...]
    """One for each of `LATENCY`."""


SHIPPED = Fit(FITTED_CONSTANTS, tuple(one.clock_share or 1.0 for one in LATENCY))


def score(predicted: Vector, recorded: Vector) -> Score:
    """Rank correlation and median relative error."""
    error = float(np.median(np.abs(predicted / recorded - 1.0)))
    return Score(len(recorded), compute_rank(predicted, recorded), error)


def compute_rank(predicted: Vector, recorded: Vector) -> float:
    """Spearman's; 0 where a side ranks nothing."""
    varies = np.ptp(predicted) > 0 and np.ptp(recorded) > 0
    return float(spearmanr(predicted, recorded)[0]) if varies else 0.0


def predict_times(
    spec: GpuSpec, pairs: Pairs, rates: LatencyConstants = FITTED_CONSTANTS, clock_share: float = 1.0
) -> Vector:
    """Modelled seconds of rows at their clocks."""
    work = stack_works([w for _, w in pairs])
    clocks_mhz = clock_share * np.array([row.clock_mhz for row, _ in pairs])
    return np.asarray(estimate_latency(spec, work.events, work.resident, clocks_mhz, rates).seconds)


def get_recorded(pairs: Pairs) -> Vector:
    """Recorded seconds."""
    return np.array([row.seconds for row, _ in pairs])


def fit(known: Sequence[tuple[Recording, Pairs]]) -> Fit:
    """The rates and clocks with the least mean absolute log error, every recording weighing the same."""
    free = [n for n, (recording, _) in enumerate(known) if recording.clock_share]

    def unpacked(values: Vector) -> Fit:
        shares = [1.0] * len(known)
        for n, value in zip(free, values[2:], strict=True):
            shares[n] = float(value)
        return Fit(LatencyConstants(norm=float(values[0]), global_cycles=float(values[1])), tuple(shares))

    def loss(values: Vector) -> float:
        if values.min() <= 0:
            return float("inf")
        tried = unpacked(values)
        errors = [
            np.log(predict_times(recording.spec, pairs, tried.rates, share) / get_recorded(pairs))
            for (recording, pairs), share in zip(known, tried.clock_shares, strict=True)
        ]
        return sum(float(np.mean(np.abs(error))) for error in errors)

    start = np.array([4.0, 1.0, *(1.1 for _ in free)])
    found = minimize(
        loss, start, method="Nelder-Mead", options={"maxfev": EVALUATIONS, "xatol": 1e-2, "fatol": 1e-4}
    )
    return unpacked(found.x)


def score_by_tile(pairs: Pairs) -> Score:
    """Minus the elements of C that a thread owns, as a rank of time."""
    area = np.array([-row.one.thread_tile for row, _ in pairs], dtype=np.float64)
    return Score(len(pairs), compute_rank(area, get_recorded(pairs)), None)


def run(spec: GpuSpec, work: Work, clock_mhz: float, activity: float = 1.0) -> SteadyState:
    """The state the simulator settles in, without the seeded residuals; `activity` is a factor on the energy
    of events, 1 for random data."""
    energy = power.compute_dynamic_energy(spec, work.events)
    dynamic = power.DynamicEnergy(activity * energy.core_j, energy.memory_j)
    return find_steady_state(spec, Todo(((work.events, work.resident),), dynamic, (1.0,)), clock_mhz)


def predict_watts(spec: GpuSpec, state: SteadyState) -> float:
    """Board power of a state, warmed up."""
    if state.throttle:
        return spec.power.tdp_w
    found, temperature = 0.0, spec.power.ambient_c
    for _ in range(30):
        found = state.active_power_w + power.compute_idle_power(spec, state.clock_mhz, temperature)
        temperature = spec.power.ambient_c + spec.power.kelvin_per_w * found
    return found


def predict_by_table(flops_per_s: Vector, power_w: Vector, learn: NDArray[np.bool_]) -> Vector:
    """Power by TFLOP/s: the median of the learning rows in each of a few equal slices."""
    edges = np.quantile(flops_per_s[learn], np.linspace(0, 1, TABLE_ROWS + 1)[1:-1])
    slices = np.searchsorted(edges, flops_per_s)
    medians = [
        np.median(power_w[learn & (slices == n)])
        if np.any(learn & (slices == n))
        else np.median(power_w[learn])
        for n in range(TABLE_ROWS)
    ]
    return np.array(medians)[slices]


def predict_constant(values: Vector, learn: NDArray[np.bool_]) -> Vector:
    """The median of the learning rows, for every row."""
    return np.full(len(values), np.median(values[learn]))
