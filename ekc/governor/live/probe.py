"""The NVML probe of a real GPU, and the units of a session: the GPUs of a job, one by one or as a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.limits import NvmlLimitReader
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import ActuatorError, DriverTrouble
from ekc.governor.live.governor_sensors import (
    INSTANT_WINDOW_S,
    BoardEnergy,
    NvmlReading,
    SensorSampler,
    read_counter_j,
    read_sensors,
)
from ekc.governor.live.gpus import format_gpu_numbers
from ekc.governor.live.group import GovernedUnit, GroupActuator, GroupProbe, intersect_offered
from ekc.governor.protocols import NullActuator, Probe
from ekc.governor.readings import NOT_MEASURED
from ekc.governor.samples import SensorSamples, Values

INSTANT_INTERVAL_S, AVERAGED_INTERVAL_S = 0.05, 0.1
"""Seconds between readings of an instantaneous power sensor, and of one that averages."""
POLL_S = 0.1
"""Seconds between two checks whether the job is still running."""
POWER_TIMEOUT_S = 5.0
"""Seconds of failed power readings after which the power of the job is unknown."""
SILENCE_TIMEOUT_S = 1.0
"""Seconds without a first reading after which a driver counts as hanging."""


class NvmlProbe:
    """Probe of one GPU, named by UUID, through NVML, while a job runs. Needs no permission.

    `read_step_count` returns the training steps of the job, None where nothing counts them. `on_message`
    gets a line where the energy counter or a power reading is not believed. Failed readings are NaN. Raises
    `ActuatorError` where there is no such GPU, or no power reading: `GpuUnusable` when the GPU is lost,
    `DriverTrouble` when readings fail for a while, or the driver does not answer.
    """

    simulated = False

    def __init__(
        self,
        gpu: str,
        is_running: Callable[[], bool],
        read_step_count: Callable[[], float | None],
        on_message: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._sensors = GpuSensors(gpu)
        self._sensor_s = self._sensors.averaging_s or INSTANT_WINDOW_S
        self._read_sensors = partial(read_sensors, self._sensors)
        self._energy = BoardEnergy(
            partial(read_counter_j, self._sensors),
            self._sensors.name,
            on_message,
            self._sensors.max_power_w,
        )
        self._on_message, self._has_warned = on_message, False
        self.label = f"NVML, {self._sensors.name}"
        self.is_running = is_running
        self.read_step_count = read_step_count
        self.now: Callable[[], float] = time.monotonic
        self._core_s = self._watched_s = 0.0
        self._powered_s = self.now()
        """Time of the last power reading that did not fail."""
        self._due_s = 0.0
        """Earliest time of the next reading: expensive readings stay rare in short recordings too."""

    @property
    def core_share(self) -> float:
        """Processor time of sampling so far, as a share of one core."""
        return self._core_s / self._watched_s if self._watched_s else 0.0

    def read_energy_j(self) -> float:
        """Total-energy counter of the board, or the integral of its power where the counter does not move."""
        return self._energy.compute_joules(self.now())

    def record(self, seconds: float) -> SensorSamples:
        """Wait that long, less where the job ends, and return the samples, which may be empty."""
        start_s = self.now()
        spacing = INSTANT_INTERVAL_S if self._sensor_s <= INSTANT_WINDOW_S else AVERAGED_INTERVAL_S
        with SensorSampler(self._read_sensors, spacing, self._due_s) as sampler:
            self._wait(seconds, sampler)
        self._due_s = sampler.due_s
        self._core_s += sampler.core_s
        self._watched_s += self.now() - start_s
        if sampler.failure is not None:
            raise sampler.failure
        rows = np.array([(at, *reading) for at, reading in list(sampler.rows)]).reshape(-1, 5)
        silent_s = sampler.compute_pending_s()
        if not len(rows) and silent_s >= SILENCE_TIMEOUT_S and self.is_running():
            raise DriverTrouble(f"{self.label}: the driver has not answered for {silent_s:.0f} s")
        time_s, power_w, sm_util, memory_util, clock_mhz = rows.T
        self._check_power(time_s, power_w)
        self._energy.add_readings(time_s, power_w)
        cap_w = self._sensors.power_cap_w()
        limit_w = NOT_MEASURED if cap_w is None else cap_w
        return SensorSamples(time_s, power_w, sm_util, memory_util, clock_mhz, limit_w, self._sensor_s)

    def _check_power(self, time_s: Values, power_w: Values) -> None:
        """Say once that a power reading was not believed. Raises `ActuatorError` where the card has none, and
        `DriverTrouble` where all readings have failed for `POWER_TIMEOUT_S`."""
        if self._sensors.power_problem and not self._has_warned:
            self._has_warned = True
            self._on_message(f"{self._sensors.name}: {self._sensors.power_problem}; that is left out")
        is_valid = np.isfinite(power_w)
        if is_valid.any():
            self._powered_s = float(time_s[is_valid][-1])
        elif len(time_s):
            line = f"{self.label} gives no power reading: {self._sensors.last_problem}"
            if not self._sensors.has_power:
                raise ActuatorError(line)
            if time_s[-1] - self._powered_s >= POWER_TIMEOUT_S:
                raise DriverTrouble(line)

    def _wait(self, seconds: float, sampler: SensorSampler[NvmlReading] | None = None) -> None:
        end_s = self.now() + seconds
        while (left_s := end_s - self.now()) > 0 and self.is_running():
            if sampler is not None and sampler.failure is not None:
                return
            time.sleep(min(POLL_S, left_s))


ProbeFactory = Callable[[str], Probe]
"""Makes the probe of a GPU, named by UUID."""
JobProbeFactory = Callable[[str, Callable[[], bool]], Probe]
"""Makes the probe of a GPU, named by UUID, that measures while a function returns True."""


def make_governed_units(keeper: LeaseKeeper, make_probe: ProbeFactory, each: bool) -> list[GovernedUnit]:
    """Units of leased GPUs: one for all of them, or with `each` one per GPU."""
    gpus = [actuator.lease.reference.gpu for actuator in keeper.actuators]
    if each or len(gpus) == 1:
        pairs = zip(gpus, keeper.actuators, strict=True)
        return [GovernedUnit(format_gpu_names(gpu), make_probe(gpu), actuator) for gpu, actuator in pairs]
    group = _make_group_probe(gpus, make_probe)
    return [GovernedUnit(format_gpu_names(*gpus), group, GroupActuator(keeper.actuators))]


def make_watched_units(gpus: Sequence[str], make_probe: ProbeFactory, each: bool) -> list[GovernedUnit]:
    """Units for advice, likewise; nothing can be set."""
    offered = [NvmlLimitReader(gpu).list_offered() for gpu in gpus]
    if each or len(gpus) == 1:
        return [
            GovernedUnit(format_gpu_names(gpu), make_probe(gpu), NullActuator(one))
            for gpu, one in zip(gpus, offered, strict=True)
        ]
    group = _make_group_probe(gpus, make_probe)
    return [GovernedUnit(format_gpu_names(*gpus), group, NullActuator(intersect_offered(offered)))]


def format_gpu_names(*gpus: str) -> str:
    """Name of GPUs for people: "GPU 0", "GPUs 0, 1"."""
    return format_gpu_numbers([NvmlLimitReader(gpu).index for gpu in gpus])


def _make_group_probe(gpus: Sequence[str], make_probe: ProbeFactory) -> Probe:
    return GroupProbe([make_probe(gpu) for gpu in gpus])
