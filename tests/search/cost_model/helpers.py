"""Kernels with given figures, and a smooth function, for the tests of the models."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import ekc
from ekc.devices.device import POWER_CAP, Interval, MeasurementConditions, Metering, Peaks, Timing
from ekc.search.data.candidate import Candidate
from ekc.search.sketches.naive import make_naive_schedule

CAP_W = 300.0
MS = 1e-3
PEAKS, LARGE = (Peaks(1e13, {"float16": 1e14}, 1e12, watts) for watts in (CAP_W, 1000.0))


def kernels(watts: Any, prior_w: Any, rows: NDArray[np.float32], capped: Any = None) -> list[Candidate]:
    """Timed and metered kernels of one millisecond."""
    capped = np.zeros(len(rows), bool) if capped is None else capped
    schedule = make_naive_schedule(ekc.matvec(8, 8))
    made = []
    for row, w, expected, cap in zip(rows, watts, prior_w, capped, strict=True):
        throttle = (POWER_CAP,) if cap else ()
        conditions = MeasurementConditions("d", True, "", "", "", 1000.0, 40.0, throttle, "", "")
        timing = Timing(MS, Interval(MS, MS), 5, conditions)
        power, energy = float(w), float(w) * MS
        metering = Metering(
            *(power, Interval(power, power), energy, Interval(energy, energy), energy, energy),
            *(50.0, 1.0, 10, conditions),
        )
        made.append(
            Candidate(schedule, "", row, MS, float(expected), 1, timings=[timing], meterings=[metering])
        )
    return made


def bumps(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows[count, 4], figures[count]): a smooth function of two of the columns."""
    rows = np.random.default_rng(seed).uniform(-2, 2, (count, 4))
    return rows, np.sin(2 * rows[:, 0]) + 0.5 * rows[:, 1] ** 2
