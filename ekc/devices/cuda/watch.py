"""Looks at a GPU's sensors while its worker measures: before, it was idle, and after, it soon is again."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Self

from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import DeviceError

SENSOR_POLL_INTERVAL_S = 0.05
"""Between two looks; a kernel is timed for ten times as long."""


@dataclass(frozen=True)
class SensorState:
    """Clock, temperature and throttle reasons of a measurement."""

    clock_mhz: float
    """When it was last told, which is while samples were taken or just after."""
    temperature_c: float
    throttle: tuple[str, ...]
    """All that were seen."""
    power_cap_w: float | None


class SensorPoller:
    """Looks for as long as the `with` block lasts."""

    def __init__(self, sensors: GpuSensors) -> None:
        self._sensors = sensors
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll_until_stopped, daemon=True)
        self._last_state: SensorState | None = None
        self._throttle: set[str] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def read_state(self) -> SensorState:
        """What the block saw; a block too short for a look is followed by one. Raises `DeviceError` where the
        GPU is lost."""
        if self._last_state is None:
            self._poll_once()
        assert self._last_state is not None
        return self._last_state

    def _poll_until_stopped(self) -> None:
        # A GPU that is lost is told by the worker, or by the next to ask.
        while not self._stopped.wait(SENSOR_POLL_INTERVAL_S):
            try:
                self._poll_once()
            except DeviceError:
                return

    def _poll_once(self) -> None:
        s = self._sensors
        self._throttle.update(s.throttle())
        throttle = tuple(sorted(self._throttle))
        clock_mhz = s.clock_mhz()
        if math.isnan(clock_mhz) and self._last_state is not None:
            clock_mhz = self._last_state.clock_mhz
        self._last_state = SensorState(clock_mhz, s.temperature_c(), throttle, s.power_cap_w())
