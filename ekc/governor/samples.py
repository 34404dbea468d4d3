"""Sensor readings of a GPU over a stretch of time, as arrays: whether the job worked, and its pauses, such as
those in which it saves a checkpoint, which are found and cut out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

IDLE_PERCENT = 5.0
"""SM use in percent up to which a reading shows an idle GPU."""
IDLE_POWER_SHARE = 0.2
"""The same for a board without that reading: share of the way from the least power to the median."""
MIN_PAUSE_S = 0.6
"""Shortest pause in seconds; sensors show no shorter one in full."""
MIN_GAP_RATIO = 2.0
"""Least length of a pause over that of the gaps that iterations have themselves."""
MIN_PERIODS_BETWEEN = 2.0
"""Periods between two pauses, at least: an idle GPU in each iteration is a part of the iteration."""


@dataclass(frozen=True)
class SensorSamples:
    """Arrays of one length by `time_s`: readings may be late. NaN where a sensor is missing or failed."""

    time_s: Values
    """Seconds on the probe's clock, increasing."""
    power_w: Values
    """Board power in watts: instantaneous where the card has it, else the driver's mean."""
    sm_util: Values
    """Percent of time in which a kernel ran, 0 to 100."""
    memory_util: Values
    """Percent of time in which memory was read or written, 0 to 100."""
    clock_mhz: Values
    power_limit_w: float = float("nan")
    """Power cap of the board in watts."""
    sensor_s: float = 0.1
    """Averaging window of a power reading in seconds; 1 where a card has no instantaneous reading."""

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def sampling_hz(self) -> float:
        """Readings per second, by the median time between two; 10 for fewer than two readings."""
        return 1.0 / max(1e-3, float(np.median(np.diff(self.time_s)))) if len(self) > 1 else 10.0

    def slice_from(self, start_s: float) -> SensorSamples:
        """The readings from a time on."""
        first = int(np.searchsorted(self.time_s, start_s))
        return self._with_columns(*(row[first:] for row in self._columns()))

    def _columns(self) -> tuple[Values, ...]:
        return self.time_s, self.power_w, self.sm_util, self.memory_util, self.clock_mhz

    def _with_columns(
        self, time_s: Values, power_w: Values, sm: Values, memory: Values, clock: Values
    ) -> SensorSamples:
        return SensorSamples(time_s, power_w, sm, memory, clock, self.power_limit_w, self.sensor_s)


def finite_mean(values: Values) -> float:
    """Mean of the finite values; NaN without any."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def concatenate_samples(first: SensorSamples, second: SensorSamples) -> SensorSamples:
    """Readings of two consecutive stretches of one GPU."""
    return second._with_columns(
        *(np.concatenate(pair) for pair in zip(first._columns(), second._columns(), strict=True))
    )


def detect_pauses(samples: SensorSamples, period_s: float) -> Values:
    """Pauses of a job with iterations of `period_s`: (pauses, 2), begin and end in seconds; none where idle
    stretches are parts of the iterations, or `period_s` is NaN."""
    if not period_s > 0:
        return np.zeros((0, 2))
    starts, ends = _find_idle_stretches(samples)
    lengths = ends - starts
    span_s = float(samples.time_s[-1] - samples.time_s[0]) if len(samples) else 0.0
    has_own_gaps = len(lengths) > span_s / (MIN_PERIODS_BETWEEN * period_s)
    usual_s = float(np.median(lengths)) if has_own_gaps else 0.0
    is_pause = (lengths >= MIN_PAUSE_S) & (lengths > MIN_GAP_RATIO * usual_s)
    if is_pause.sum() * MIN_PERIODS_BETWEEN * period_s > span_s:
        return np.zeros((0, 2))
    return np.stack([starts[is_pause], ends[is_pause]], axis=1)


def cut_pauses(samples: SensorSamples, period_s: float) -> SensorSamples:
    """The samples without pauses, as if what follows a pause had followed at once; all of them where
    `period_s` is NaN."""
    pauses = detect_pauses(samples, period_s)
    return samples if not len(pauses) else drop_stretches(samples, pauses)


def drop_stretches(samples: SensorSamples, stretches: Values) -> SensorSamples:
    """The samples outside of some stretches, whose time is left out."""
    is_kept = ~is_inside(samples.time_s, stretches)
    time_s, *others = (row[is_kept] for row in samples._columns())
    return samples._with_columns(shift_times(time_s, stretches), *others)


def is_inside(time_s: Values, stretches: Values) -> NDArray[np.bool_]:
    """Whether each time is inside one of some stretches; their ends are not."""
    starts, ends = stretches[:, 0], stretches[:, 1]
    inside = (time_s[:, None] > starts[None, :]) & (time_s[:, None] < ends[None, :])
    return np.asarray(inside.any(axis=1))


def shift_times(time_s: Values, stretches: Values) -> Values:
    """Times without the time of the stretches before them."""
    starts, lengths = stretches[:, 0], stretches[:, 1] - stretches[:, 0]
    gone = np.clip(time_s[:, None] - starts[None, :], 0.0, lengths[None, :])
    shifted: Values = time_s - gone.sum(axis=1)
    return shifted


def _find_idle_stretches(samples: SensorSamples) -> tuple[Values, Values]:
    """(begins, ends) of stretches without a kernel: from the last reading before to the first one after."""
    signal, idle = samples.sm_util, IDLE_PERCENT
    if not np.isfinite(signal).any():
        signal = samples.power_w
        idle = _compute_idle_power(signal[np.isfinite(signal)])
    is_idle = (signal <= idle) * 1
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_idle, [0]])))
    last = max(len(samples) - 1, 0)
    return samples.time_s[np.maximum(edges[::2] - 1, 0)], samples.time_s[np.minimum(edges[1::2], last)]


def _compute_idle_power(watts: Values) -> float:
    """Watts up to which a GPU counts as idle; below all of them where there is no reading."""
    if not len(watts):
        return -np.inf
    least, median = np.quantile(watts, [0.01, 0.5])
    return float(least + IDLE_POWER_SHARE * (median - least))


def has_work(samples: SensorSamples) -> bool:
    """Whether a kernel ran during the samples; true where SM use was not measured."""
    use = samples.sm_util[np.isfinite(samples.sm_util)]
    return not len(use) or bool(use.max() > 0)


def measure_longest_idle_s(samples: SensorSamples) -> float:
    """Longest stretch without a kernel in seconds."""
    is_idle = samples.sm_util <= 0
    if not is_idle.any():
        return 0.0
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_idle.astype(int), [0]])))
    lengths = edges[1::2] - edges[::2]
    interval_s = float(np.median(np.diff(samples.time_s))) if len(samples) > 1 else 0.1
    return float(lengths.max() * interval_s)
