"""Made traces of a power sensor that shows single moments (simulated): short iterations, sharp changes.

A sensor that sees a moment of each interval, or 25 ms of each 100 as those of A100 and H100
(arXiv 2312.02741), shows a pattern exactly again only after a whole number of readings. Traces are made for
the numbers of levels and noises in `CASES`; each iteration has the same length.
"""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import numpy as np

from ekc.governor import detect_period
from ekc.governor.samples import Values
from ekc.tables import format_table

SECONDS, HZ = 45.0, 10.0
PERIOD_RANGE_S = (0.8, 1.6)
POWER_RANGE_W, MIN_SPREAD_W = (100.0, 400.0), 80.0
"""Range of the power levels, and the least difference of the highest and the lowest."""
CASES = {(5, 6.0): 0.95, (2, 6.0): 0.88, (5, 20.0): 0.90, (2, 20.0): 0.85}
"""Least share of traces whose period is found, by (number of power levels, noise in watts)."""
MAX_ERROR = 0.02
"""Relative error up to which a period is found."""
SEED_COUNT = 3


def make_point_trace(level_count: int, noise_w: float, seed: int, number: int) -> tuple[Values, float]:
    """(power in watts, (450,), its true period in seconds); levels and edges are uniform."""
    rng = np.random.default_rng([seed, number, level_count, int(noise_w)])
    period_s = float(rng.uniform(*PERIOD_RANGE_S))
    levels = rng.uniform(*POWER_RANGE_W, level_count)
    while np.ptp(levels) < MIN_SPREAD_W:
        levels = rng.uniform(*POWER_RANGE_W, level_count)
    edges = np.sort(rng.uniform(0.0, 1.0, level_count - 1))
    time_s = rng.uniform(0.0, period_s) + np.arange(round(SECONDS * HZ)) / HZ
    watts = levels[np.searchsorted(edges, time_s / period_s % 1.0, side="right")]
    return watts + noise_w * rng.standard_normal(len(watts)), period_s


def judge_point_traces(first_seed: int, count: int) -> list[dict[str, Any]]:
    """One row for each case: the share of `count` traces of each of `SEED_COUNT` seeds that is found, the
    share told as a multiple, and the mean milliseconds of a detection."""
    seeds = range(first_seed, first_seed + SEED_COUNT)
    rows = []
    for (level_count, noise_w), least in CASES.items():
        begun, ratios = time.process_time(), []
        for seed, number in product(seeds, range(count)):
            watts, period_s = make_point_trace(level_count, noise_w, seed, number)
            period = detect_period(watts, HZ)
            ratios.append(period.seconds / period_s if period.verdict == "periodic" else np.nan)
        ratio = np.array(ratios)
        is_multiple = (ratio > 1.5) & (np.abs(ratio - np.round(ratio)) < MAX_ERROR * ratio)
        found = float(np.mean(np.abs(ratio - 1.0) <= MAX_ERROR))
        rows.append(
            {
                "levels": level_count,
                "noise_w": noise_w,
                "traces": len(ratio),
                "found": found,
                "multiple": float(np.mean(is_multiple)),
                "not_periodic": float(np.mean(np.isnan(ratio))),
                "milliseconds": 1e3 * (time.process_time() - begun) / len(ratio),
                "least": least,
                "pass": found >= least,
            }
        )
    return rows


def format_point_traces(rows: list[dict[str, Any]]) -> str:
    """The table of `judge_point_traces`."""
    head = ("levels", "noise [W]", "traces", "within 2 %", "multiple", "not periodic", "CPU [ms]", "bar", "")
    lines = [
        (
            str(row["levels"]),
            f"{row['noise_w']:g}",
            str(row["traces"]),
            *(f"{row[name]:.1%}" for name in ("found", "multiple", "not_periodic")),
            f"{row['milliseconds']:.1f}",
            f"{row['least']:.0%}",
            "pass" if row["pass"] else "FAIL",
        )
        for row in rows
    ]
    return format_table(head, lines)
