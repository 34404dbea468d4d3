"""Several GPUs of one data-parallel job under one policy: the probe and actuator of all together.

One clock for all: the slowest rank sets the pace of every step, so a clock of its own for each GPU
would only let them wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from ekc.errors import EkcError
from ekc.governor.protocols import Actuator, Gears, Probe, Settings
from ekc.governor.samples import SensorSamples, Values

T = TypeVar("T")
Gear = TypeVar("Gear", int, float)


class GroupActuator:
    """Sets every GPU alike; power caps are per GPU."""

    def __init__(self, members: Sequence[Actuator]) -> None:
        self._members = tuple(members)

    @property
    def label(self) -> str:
        """All of them."""
        return f"{len(self._members)} GPUs alike: " + "; ".join(x.label for x in self._members)

    @property
    def simulated(self) -> bool:
        """Whether any is."""
        return any(x.simulated for x in self._members)

    def gears(self) -> Gears:
        """What every one of them can be set to."""
        return intersect_gears([x.gears() for x in self._members])

    def settings(self) -> Settings:
        """Of the first; `apply` keeps them alike."""
        return self._members[0].settings()

    def apply(self, settings: Settings) -> None:
        """One after the other, also beyond one that fails: the others shall not stay as they were for it.

        Raises the first `EkcError` at the end.
        """
        problems: list[EkcError] = []
        for member in self._members:
            try:
                member.apply(settings)
            except EkcError as problem:
                problems.append(problem)
        if problems:
            raise problems[0]


class GroupProbe:
    """Power and energy of all GPUs added up, the rest their mean."""

    def __init__(self, members: Sequence[Probe]) -> None:
        self._members = tuple(members)

    @property
    def label(self) -> str:
        """All of them."""
        return f"{len(self._members)} GPUs together: " + "; ".join(x.label for x in self._members)

    @property
    def simulated(self) -> bool:
        """Whether any is."""
        return any(x.simulated for x in self._members)

    def now(self) -> float:
        """The clock of the first."""
        return self._members[0].now()

    def record(self, seconds: float) -> SensorSamples:
        """All at once, brought to the times of the first."""
        parts = self._call_all(lambda probe: probe.record(seconds))
        ago = [part.time_s - probe.now() for part, probe in zip(parts, self._members, strict=True)]

        def all_of(name: str) -> Values:
            """Array of (GPU, reading)."""
            rows = (
                _interpolate_readings(ago[0], own, getattr(part, name))
                for own, part in zip(ago, parts, strict=True)
            )
            return np.array(list(rows))

        return SensorSamples(
            time_s=parts[0].time_s,
            power_w=all_of("power_w").sum(axis=0),
            sm_util=all_of("sm_util").mean(axis=0),
            memory_util=all_of("memory_util").mean(axis=0),
            clock_mhz=all_of("clock_mhz").mean(axis=0),
            power_limit_w=sum(part.power_limit_w for part in parts),
            sensor_s=max(part.sensor_s for part in parts),
        )

    def read_energy_j(self) -> float:
        """Of all boards."""
        return sum(x.read_energy_j() for x in self._members)

    def is_running(self) -> bool:
        """Whether the job is still there."""
        return self._members[0].is_running()

    def read_step_count(self) -> float | None:
        """Of the job, which has one count."""
        return self._members[0].read_step_count()

    def read_counters(self, seconds: float) -> dict[str, float] | None:
        """Their means; None where any has none."""
        parts = [x for x in self._call_all(lambda probe: probe.read_counters(seconds)) if x is not None]
        if len(parts) < len(self._members):
            return None
        return {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}

    def _call_all(self, call: Callable[[Probe], T]) -> list[T]:
        with ThreadPoolExecutor(len(self._members)) as pool:
            return list(pool.map(call, self._members))


def _interpolate_readings(times: Values, reading_times: Values, values: Values) -> Values:
    """Readings brought to other times; NaN stays out of it."""
    good = ~np.isnan(values)
    if not good.any():
        return np.full(len(times), np.nan)
    return np.interp(times, reading_times[good], values[good])


def intersect_gears(gears: Sequence[Gears]) -> Gears:
    """What all of them have."""
    return Gears(
        sm_mhz=_intersect([x.sm_mhz for x in gears]),
        memory_mhz=_intersect([x.memory_mhz for x in gears]),
        power_w=_intersect([x.power_w for x in gears]),
    )


def _intersect(gears: Sequence[tuple[Gear, ...]]) -> tuple[Gear, ...]:
    return tuple(sorted(set(gears[0]).intersection(*gears[1:])))
