"""What the sensors of a card show of a stretch of true power and use: means over a window, with noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.governor.jobs.card import Card
from ekc.governor.samples import Samples

Values = NDArray[np.float64]
SAMPLE_S = 0.1
JITTER_S = 0.004
"""How late a reading comes, one sigma."""
LOST = 0.005
"""Share of readings that fail."""
UTIL_NOISE = 1.0
"""Points of 100, one sigma; readings are whole numbers."""


@dataclass(frozen=True)
class Truth:
    """Piecewise constant: between `edge_s[i]` and `edge_s[i + 1]` each holds its i-th value."""

    edge_s: Values
    watts: Values
    sm_util: Values
    memory_util: Values
    clock_mhz: Values

    def mean(self, values: Values, until: Values, window_s: float) -> Values:
        """Means of one of them over the windows that end at `until`."""
        total = np.concatenate([[0.0], np.cumsum(values * np.diff(self.edge_s))])
        begin = np.maximum(until - window_s, self.edge_s[0])
        whole = np.interp(until, self.edge_s, total) - np.interp(begin, self.edge_s, total)
        return np.asarray(whole / np.maximum(until - begin, 1e-9))


def observe(card: Card, truth: Truth, start: float, end: float, rng: np.random.Generator) -> Samples:
    """Readings from `start` (left out) to `end`; `truth` must reach back by a window before `start`."""
    count = max(0, int((end - start) / SAMPLE_S + 1e-9))
    due = start + SAMPLE_S * np.arange(1, count + 1)
    late = np.abs(rng.normal(0.0, JITTER_S, count))
    kept = rng.random(count) >= LOST
    at = np.minimum(due + late, end)[kept]
    watts = truth.mean(truth.watts, at, card.power_window_s)
    return Samples(
        time_s=at,
        power_w=watts * rng.normal(1.0, card.power_noise, len(at)),
        sm_util=_whole(truth.mean(truth.sm_util, at, card.util_window_s), rng),
        memory_util=_whole(truth.mean(truth.memory_util, at, card.util_window_s), rng),
        clock_mhz=truth.clock_mhz[np.searchsorted(truth.edge_s, at, side="left").clip(1) - 1],
        power_limit_w=card.spec.power.tdp_w,
        sensor_s=card.power_window_s,
    )


def _whole(percent: Values, rng: np.random.Generator) -> Values:
    """Percent as NVML shows them; a flat 0 stays one."""
    noisy = percent + UTIL_NOISE * rng.standard_normal(len(percent)) * (percent > 0) * (percent < 100)
    return np.asarray(np.round(noisy).clip(0, 100))
