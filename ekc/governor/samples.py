"""Sensor readings of a GPU over a stretch of time, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]


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
