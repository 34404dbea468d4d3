"""Simulated cards: their clocks, the power that does not depend on the kernel, and their noisy sensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ekc.devices.simulated import power
from ekc.devices.simulated.specs import H200, RTX3090, GpuSpec
from ekc.errors import InvalidInput
from ekc.governor.protocols import OfferedSettings
from ekc.governor.samples import SensorSamples, Values

DIE_TEMPERATURE_C = 65.0
"""Temperature of the die while training; constant, since the heat of other clocks is not simulated."""
MEMORY_STANDBY_SHARE = 0.4
"""Share of the board's constant power that is memory standby and follows the memory clock (estimate)."""


@dataclass(frozen=True)
class SimulatedCard:
    """One simulated GPU."""

    spec: GpuSpec
    memory_mhz: tuple[int, ...]
    """Memory clocks in MHz, ascending; the last is the driver's default."""
    power_window_s: float
    """Averaging window of a power reading in seconds."""
    util_window_s: float
    """Averaging window of a utilisation reading in seconds."""
    power_noise: float
    """Relative standard deviation of a power reading."""
    counter_slowdown: float
    """Slowdown factor while counters are read: by a profiler, which replays kernels, or by GPM at no cost."""

    @property
    def name(self) -> str:
        """Name of the card in `ekc.devices.simulated.specs`."""
        return self.spec.name

    def list_sm_clocks_mhz(self) -> Values:
        """SM clocks in MHz, ascending."""
        return np.array(self.spec.list_clocks_mhz(), float)

    def list_offered(self) -> OfferedSettings:
        """Values to which each limit can be set."""
        cap = self.spec.power.tdp_w
        caps = tuple(float(w) for w in range(int(0.4 * cap) // 25 * 25, int(cap) + 1, 25))
        memory = self.memory_mhz if len(self.memory_mhz) > 1 else ()
        return OfferedSettings(sm_mhz=self.spec.list_clocks_mhz(), memory_mhz=memory, power_w=caps)

    def compute_resting_w(self) -> Values:
        """Board watts with a context but no kernel, by memory clock and SM clock."""
        reduction = 1 - np.array(self.memory_mhz) / self.memory_mhz[-1]
        standby_w = MEMORY_STANDBY_SHARE * self.spec.power.constant_w * reduction
        return self._awake_w[None, :] - standby_w[:, None]

    @cached_property
    def _awake_w(self) -> Values:
        clocks = self.list_sm_clocks_mhz()
        return np.array([power.compute_idle_power(self.spec, f, DIE_TEMPERATURE_C) for f in clocks])

    @cached_property
    def clock_tree_w(self) -> Values:
        """Watts of the clock tree while kernels run, by SM clock."""
        clocks = self.list_sm_clocks_mhz()
        return np.array([power.compute_active_clock_power(self.spec, f, 1.0) for f in clocks])

    @cached_property
    def voltage_squared(self) -> Values:
        """Square of the voltage relative to the top clock's, by SM clock."""
        volts = np.array([self.spec.voltage.at_clock(f) for f in self.list_sm_clocks_mhz()])
        return np.asarray((volts / volts[-1]) ** 2)


SIMULATED_CARDS = {
    # Power is a mean of 1 s on Ampere except GA100 (NVML documentation); utilisation 1/6 to 1 s (the same).
    "rtx3090": SimulatedCard(RTX3090, (405, 810, 5001, 9501, 9751), 1.0, 0.5, 0.005, 1.10),
    # NVML_FI_DEV_POWER_INSTANT; the sensor sees a quarter of the time (arXiv 2312.02741), hence more noise.
    "h200": SimulatedCard(H200, (3201,), 0.1, 0.2, 0.02, 1.0),
}


def find_card(name: str) -> SimulatedCard:
    """The card of a name. Raises `InvalidInput` for an unknown one."""
    if name not in SIMULATED_CARDS:
        raise InvalidInput(f"simulated card: no card {name!r}; cards are {', '.join(SIMULATED_CARDS)}")
    return SIMULATED_CARDS[name]


SAMPLE_S = 0.1
JITTER_S = 0.004
"""Standard deviation of a reading's delay in seconds."""
LOST_SHARE = 0.005
"""Share of readings that fail, 0 to 1."""
UTIL_NOISE = 1.0
"""Standard deviation of a utilisation reading in percent; readings are integers."""


@dataclass(frozen=True)
class TrueSignals:
    """True signals of a card, piecewise constant: value i is that between `edge_s[i]` and `edge_s[i + 1]`."""

    edge_s: Values
    watts: Values
    sm_util: Values
    memory_util: Values
    clock_mhz: Values

    def average_over_windows(self, values: Values, end_s: Values, window_s: float) -> Values:
        """Means of one signal over windows that end at `end_s`."""
        total = np.concatenate([[0.0], np.cumsum(values * np.diff(self.edge_s))])
        begin = np.maximum(end_s - window_s, self.edge_s[0])
        integral = np.interp(end_s, self.edge_s, total) - np.interp(begin, self.edge_s, total)
        return np.asarray(integral / np.maximum(end_s - begin, 1e-9))


def sample_sensors(
    card: SimulatedCard, truth: TrueSignals, start_s: float, end_s: float, rng: np.random.Generator
) -> SensorSamples:
    """Sensor readings from `start_s` (exclusive) to `end_s`; `truth` must begin a window before `start_s`."""
    count = max(0, int((end_s - start_s) / SAMPLE_S + 1e-9))
    due_s = start_s + SAMPLE_S * np.arange(1, count + 1)
    delay_s = np.abs(rng.normal(0.0, JITTER_S, count))
    is_valid = rng.random(count) >= LOST_SHARE
    at = np.minimum(due_s + delay_s, end_s)[is_valid]
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


def _round_percent(percent: Values, rng: np.random.Generator) -> Values:
    """Noisy integer percent as NVML shows them; 0 and 100 have no noise."""
    noisy = percent + UTIL_NOISE * rng.standard_normal(len(percent)) * (percent > 0) * (percent < 100)
    return np.asarray(np.round(noisy).clip(0, 100))
