"""Generated traces of a power sensor that shows single points (simulated): short iterations with sharp changes.

A sensor that sees a moment of each interval, or 25 ms of each 100 as those of A100 and H100
(arXiv 2312.02741), shows a pattern exactly again only after a whole number of readings. Traces are made for
`COUNTS_OF_LEVELS` and `NOISES_W`; each iteration has the same length.
"""

from __future__ import annotations

import numpy as np

from ekc.governor.samples import Values

SECONDS, HZ = 45.0, 10.0
PERIOD_RANGE_S = (0.8, 1.6)
POWER_RANGE_W, MIN_SPREAD_W = (100.0, 400.0), 80.0
"""Range of the power levels, and the least difference of the highest and the lowest."""
COUNTS_OF_LEVELS = (5, 2)
NOISES_W = (6.0, 20.0)


def make_point_trace(level_count: int, noise_w: float, seed: int) -> tuple[Values, float]:
    """(power in watts, (450,), its true period in seconds): levels and edges are uniform."""
    rng = np.random.default_rng([seed, level_count, int(noise_w)])
    period_s = float(rng.uniform(*PERIOD_RANGE_S))
    levels = rng.uniform(*POWER_RANGE_W, level_count)
    while np.ptp(levels) < MIN_SPREAD_W:
        levels = rng.uniform(*POWER_RANGE_W, level_count)
    edges = np.sort(rng.uniform(0.0, 1.0, level_count - 1))
    time_s = rng.uniform(0.0, period_s) + np.arange(round(SECONDS * HZ)) / HZ
    watts = levels[np.searchsorted(edges, time_s / period_s % 1.0, side="right")]
    return watts + noise_w * rng.standard_normal(len(watts)), period_s
