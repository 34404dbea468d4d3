"""How the sensors of a GPU behave, found by watching them for a moment. Nothing is run or set."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from ekc.devices.looks import POLL_INTERVAL_S, STALL_S
from ekc.devices.nvml.sensors import GpuSensors

OBSERVATION_S = 1.5
_PART_TIME_CARDS = re.compile(r"\b(A100|H100)\b")
PART_TIME_NOTE = "looks at 25 of every 100 ms (arXiv 2312.02741)"


@dataclass(frozen=True)
class SensorBehaviour:
    """What was seen in `WATCHED_S`."""

    has_counter: bool
    """Whether there is an energy counter."""
    tick_interval_s: float | None
    """Between two movements of it; None where it did not move twice."""
    is_instantaneous: bool
    """Whether there is a reading of power now, and not only a mean."""
    averaging_s: float
    """Over which the power reading is a mean; 0 for none."""
    refresh_interval_s: float | None
    """Between two values of the power reading; None where it did not change twice."""
    part_time_note: str
    """What is known of a sensor that does not look always; "" where nothing is."""


def observe_sensors(
    sensors: GpuSensors,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> SensorBehaviour:
    """Watch for `WATCHED_S`. Raises `ActuatorError` if the GPU is lost."""
    ends = now() + OBSERVATION_S
    counted, told = sensors.counter_mj(), sensors.power_w()
    has_counter = counted is not None
    ticks: list[float] = []
    changes: list[float] = []
    while (at := now()) < ends:
        counter, watts = sensors.counter_mj(), sensors.power_w()
        if counter != counted:
            ticks.append(at)
        if watts != told and watts == watts:
            changes.append(at)
        counted, told = counter, watts
        sleep(POLL_INTERVAL_S)
    known = _PART_TIME_CARDS.search(sensors.name)
    return SensorBehaviour(
        has_counter=has_counter,
        tick_interval_s=_compute_median_interval(ticks) if has_counter else None,
        is_instantaneous=sensors.is_instantaneous,
        averaging_s=sensors.averaging_s,
        refresh_interval_s=_compute_median_interval(changes),
        part_time_note=PART_TIME_NOTE if known else "",
    )


def _compute_median_interval(moments: list[float]) -> float | None:
    """Median distance; None where there is none, or one that the meter would not wait for."""
    if len(moments) < 2:
        return None
    found = statistics.median(b - a for a, b in pairwise(moments))
    return found if found < STALL_S else None
