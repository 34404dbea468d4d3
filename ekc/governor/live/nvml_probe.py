"""The probe of a real GPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ekc.errors import ActuatorError
from ekc.governor.live.energy import Energy
from ekc.governor.live.nvml_sensors import INSTANT_S, NvmlSensors, Reading
from ekc.governor.live.sampler import Sampler
from ekc.governor.samples import Samples

FAST_S, SLOW_S = 0.05, 0.1
"""Between readings of a power sensor that is instantaneous, and of one that averages."""
LOOK_S = 0.1
"""How often is looked whether the job is still there."""
SILENT_S = 1.0
"""A driver that owes a first reading for so long hangs."""


class NvmlProbe:
    """Watches one GPU, named by UUID, through NVML, while a job is `running`. Needs no permission.

    `steps` tells how many training steps the job has done, None where nothing counts them. `tell` gets a line
    where the energy counter is not believed. Readings that fail are NaN. Raises `ActuatorError` where there
    is no such GPU, when it is lost, and when it tells no power or nothing at all.
    """

    simulated = False

    def __init__(
        self,
        gpu: str,
        running: Callable[[], bool],
        steps: Callable[[], float | None],
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._sensors = NvmlSensors(gpu)
        self._energy = Energy(self._sensors.counted_j, self._sensors.name, tell)
        self.label = f"NVML, {self._sensors.name}"
        self.running = running
        self.steps = steps
        self.now: Callable[[], float] = time.monotonic
        self._core_s = self._watched_s = 0.0
        self._due_s = 0.0
        """When the next reading may be made: readings that cost much come seldom in short recordings too."""

    @property
    def overhead(self) -> float:
        """Processor time of sampling so far, as a share of one core."""
        return self._core_s / self._watched_s if self._watched_s else 0.0

    def energy_j(self) -> float:
        """The board's total-energy counter; where there is none that moves, what was read of its power."""
        return self._energy.joules(self.now())

    def record(self, seconds: float) -> Samples:
        """Wait that long, less where the job ends, and return what was sampled, which may be nothing."""
        begun = self.now()
        spacing = FAST_S if self._sensors.sensor_s <= INSTANT_S else SLOW_S
        with Sampler(self._sensors.read, spacing, self._due_s) as sampler:
            self._wait(seconds, sampler)
        self._due_s = sampler.due_s
        self._core_s += sampler.core_s
        self._watched_s += self.now() - begun
        if sampler.failure is not None:
            raise sampler.failure
        rows = np.array([(at, *reading) for at, reading in list(sampler.rows)]).reshape(-1, 5)
        silent_s = sampler.unanswered_s()
        if not len(rows) and silent_s >= SILENT_S and self.running():
            raise ActuatorError(f"{self.label}: the driver has not answered for {silent_s:.0f} s")
        if len(rows) and np.isnan(rows[:, 1]).all():
            raise ActuatorError(f"{self.label} tells no power: {self._sensors.problem}")
        time_s, power_w, sm_util, memory_util, clock_mhz = rows.T
        self._energy.add(time_s, power_w)
        limit_w, sensor_s = self._sensors.limit_w(), self._sensors.sensor_s
        return Samples(time_s, power_w, sm_util, memory_util, clock_mhz, limit_w, sensor_s)

    def counters(self, seconds: float) -> dict[str, float] | None:
        """Mean counters of the next seconds, 0 to 100: `sm_active`, `dram`, `tensor`, `fma`.

        From GPM, on Hopper and later; None elsewhere, and where it is not permitted.
        """
        return self._sensors.counters(lambda: self._wait(seconds))

    def _wait(self, seconds: float, sampler: Sampler[Reading] | None = None) -> None:
        end = self.now() + seconds
        while (left := end - self.now()) > 0 and self.running():
            if sampler is not None and sampler.failure is not None:
                return
            time.sleep(min(LOOK_S, left))
