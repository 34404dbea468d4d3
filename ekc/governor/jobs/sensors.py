"""What the sensors of a card show of a stretch of true power and use: means over a window, with noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.governor.jobs.card import SimulatedCard
from ekc.governor.samples import SensorSamples

SimulatedSensorValues = NDArray[np.float64]
SAMPLE_S = 0.1
JITTER_S = 0.004
"""How late a reading comes, one sigma."""
LOST_SHARE = 0.005
"""Share of readings that fail."""
UTIL_NOISE = 1.0
"""Points of 100, one sigma; readings are whole numbers."""


@dataclass(frozen=True)
class TrueSignals:
    """Piecewise constant: between `edge_s[i]` and `edge_s[i + 1]` each holds its i-th value."""

    edge_s: SimulatedSensorValues
    watts: SimulatedSensorValues
    sm_util: SimulatedSensorValues
    memory_util: SimulatedSensorValues
    clock_mhz: SimulatedSensorValues

    def average_over_windows(
        self, values: SimulatedSensorValues, end_s: SimulatedSensorValues, window_s: float
    ) -> SimulatedSensorValues:
        """Means of one of them over the windows that end at `until`."""
        total = np.concatenate([[0.0], np.cumsum(values * np.diff(self.edge_s))])
        begin = np.maximum(end_s - window_s, self.edge_s[0])
        whole = np.interp(end_s, self.edge_s, total) - np.interp(begin, self.edge_s, total)
        return np.asarray(whole / np.maximum(end_s - begin, 1e-9))


def sample_sensors(
    card: SimulatedCard, truth: TrueSignals, start_s: float, end_s: float, rng: np.random.Generator
) -> SensorSamples:
    """Readings from `start` (left out) to `end`; `truth` must reach back by a window before `start`."""
    count = max(0, int((end_s - start_s) / SAMPLE_S + 1e-9))
    due = start_s + SAMPLE_S * np.arange(1, count + 1)
    late = np.abs(rng.normal(0.0, JITTER_S, count))
    kept = rng.random(count) >= LOST_SHARE
    at = np.minimum(due + late, end_s)[kept]
    watts = truth.average_over_windows(truth.watts, at, card.power_window_s)
    return SensorSamples(
        time_s=at,
        power_w=watts * rng.normal(1.0, card.power_noise, len(at)),
        sm_util=_round_percent(truth.average_over_windows(truth.sm_util, at, card.util_window_s), rng),
        memory_util=_round_percent(
            truth.average_over_windows(truth.memory_util, at, card.util_window_s), rng
        ),
        clock_mhz=truth.clock_mhz[np.searchsorted(truth.edge_s, at, side="left").clip(1) - 1],
        power_limit_w=card.spec.power.tdp_w,
        sensor_s=card.power_window_s,
    )


def _round_percent(percent: SimulatedSensorValues, rng: np.random.Generator) -> SimulatedSensorValues:
    """Percent as NVML shows them; a flat 0 stays one."""
    noisy = percent + UTIL_NOISE * rng.standard_normal(len(percent)) * (percent > 0) * (percent < 100)
    return np.asarray(np.round(noisy).clip(0, 100))
