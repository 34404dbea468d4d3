"""Looks at a GPU's sensors while its worker measures: before, it was idle, and after, it soon is again."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Self

from ekc.devices.nvml.sensors import Sensors
from ekc.errors import DeviceError

LOOK_S = 0.05
"""Between two looks; a kernel is timed for ten times as long."""


@dataclass(frozen=True)
class Seen:
    """Clock, temperature and throttle reasons of a measurement."""

    clock_mhz: float
    """When it was last told, which is while samples were taken or just after."""
    temperature_c: float
    throttle: tuple[str, ...]
    """All that were seen."""
    power_cap_w: float | None


class Watch:
    """Looks for as long as the `with` block lasts."""

    def __init__(self, sensors: Sensors) -> None:
        self._sensors = sensors
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._last: Seen | None = None
        self._throttle: set[str] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def seen(self) -> Seen:
        """What the block saw; a block too short for a look is followed by one. Raises `DeviceError` where the
        GPU is lost."""
        if self._last is None:
            self._look()
        assert self._last is not None
        return self._last

    def _look_on(self) -> None:
        # A GPU that is lost is told by the worker, or by the next to ask.
        while not self._over.wait(LOOK_S):
            try:
                self._look()
            except DeviceError:
                return

    def _look(self) -> None:
        s = self._sensors
        self._throttle.update(s.throttle())
        throttle = tuple(sorted(self._throttle))
        clock_mhz = s.clock_mhz()
        if math.isnan(clock_mhz) and self._last is not None:
            clock_mhz = self._last.clock_mhz
        self._last = Seen(clock_mhz, s.temperature_c(), throttle, s.power_cap_w())
