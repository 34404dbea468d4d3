"""The units of a session: the GPUs of a job, one by one or as a group, each with a probe and an actuator.

All GPUs of a group get the same clock: the slowest rank of a data-parallel job determines the time of every
step, and the others would wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from ekc.errors import DriverTrouble, EkcError, InvalidInput
from ekc.governor.live.gpus import format_gpu_names
from ekc.governor.protocols import LIMITS, Actuator, Limit, NullActuator, OfferedSettings, Probe, Settings
from ekc.governor.samples import SensorSamples, Values
from ekc.governor.simulation.card import SIMULATED_CARDS
from ekc.governor.simulation.random_jobs import JOB_KINDS, sample_job
from ekc.governor.simulation.simulated_run import SimulatedRun


@dataclass(frozen=True)
class GovernedUnit:
    """GPU or group that one loop governs, with its probe and actuator."""

    name: str
    probe: Probe
    actuator: Actuator


M = TypeVar("M", Actuator, Probe)
T = TypeVar("T")


class _Group(Generic[M]):
    """The actuators or the probes of several GPUs."""

    manner: str

    def __init__(self, members: Sequence[M]) -> None:
        self._members: tuple[M, ...] = tuple(members)

    @property
    def label(self) -> str:
        """Labels of all GPUs."""
        return f"{len(self._members)} GPUs {self.manner}: " + "; ".join(x.label for x in self._members)

    @property
    def simulated(self) -> bool:
        """Whether any GPU is simulated."""
        return any(x.simulated for x in self._members)


class GroupActuator(_Group[Actuator]):
    """Sets all GPUs alike; a power cap applies to each GPU."""

    manner = "alike"

    def list_offered(self) -> OfferedSettings:
        """Values that every GPU can be set to."""
        return intersect_offered([x.list_offered() for x in self._members])

    def settings(self) -> Settings:
        """Settings of the first GPU; `apply` keeps all alike."""
        return self._members[0].settings()

    def taken_limits(self) -> frozenset[Limit]:
        """Limits that others have set on any GPU."""
        return frozenset[Limit]().union(*(x.taken_limits() for x in self._members))

    def apply(self, settings: Settings) -> None:
        """Set one GPU after the other, also after one that fails. Raises one of the errors at the end, first
        those that last."""
        problems: list[EkcError] = []
        for member in self._members:
            try:
                member.apply(settings)
            except EkcError as problem:
                problems.append(problem)
        if problems:
            raise next((x for x in problems if not isinstance(x, DriverTrouble)), problems[0])


class GroupProbe(_Group[Probe]):
    """Sum of power and energy over all GPUs, and means of the other sensors."""

    manner = "together"

    def now(self) -> float:
        """Clock of the first probe."""
        return self._members[0].now()

    def record(self, seconds: float) -> SensorSamples:
        """Record on all GPUs at once; samples are interpolated to the times of the first."""
        parts = self._call_all(lambda probe: probe.record(seconds))
        age_s = [part.time_s - probe.now() for part, probe in zip(parts, self._members, strict=True)]

        def stack_readings(name: str) -> Values:
            """Array of (GPU, reading)."""
            columns = zip(age_s, (getattr(part, name) for part in parts), strict=True)
            return np.array([_interpolate_readings(age_s[0], times, values) for times, values in columns])

        return SensorSamples(
            time_s=parts[0].time_s,
            power_w=stack_readings("power_w").sum(axis=0),
            sm_util=stack_readings("sm_util").mean(axis=0),
            memory_util=stack_readings("memory_util").mean(axis=0),
            clock_mhz=stack_readings("clock_mhz").mean(axis=0),
            power_limit_w=sum(part.power_limit_w for part in parts),
            sensor_s=max(part.sensor_s for part in parts),
        )

    def read_energy_j(self) -> float:
        """Joules of all boards."""
        return sum(x.read_energy_j() for x in self._members)

    def is_running(self) -> bool:
        """Whether the job is still running."""
        return self._members[0].is_running()

    def read_step_count(self) -> float | None:
        """Steps of the job, which has one count."""
        return self._members[0].read_step_count()

    def read_counters(self, seconds: float) -> dict[str, float]:
        """Means over all GPUs, read at once. Raises `CountersMissing` where one has none."""
        parts = self._call_all(lambda probe: probe.read_counters(seconds))
        return {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}

    def _call_all(self, call: Callable[[Probe], T]) -> list[T]:
        with ThreadPoolExecutor(len(self._members)) as pool:
            return list(pool.map(call, self._members))


def _interpolate_readings(times: Values, reading_times: Values, values: Values) -> Values:
    """Readings interpolated to other times, without NaN."""
    is_valid = ~np.isnan(values)
    if not is_valid.any():
        return np.full(len(times), np.nan)
    return np.interp(times, reading_times[is_valid], values[is_valid])


def intersect_offered(offered: Sequence[OfferedSettings]) -> OfferedSettings:
    """Values that all cards have."""
    common = {limit: set.intersection(*(set(getattr(x, limit)) for x in offered)) for limit in LIMITS}
    return OfferedSettings(**{limit: tuple(sorted(values)) for limit, values in common.items()})


def make_units(
    actuators: Mapping[str, Actuator], make_probe: Callable[[str], Probe], each: bool
) -> list[GovernedUnit]:
    """Units of GPUs, from their actuators by UUID: one for all of them, or with `each` one per GPU."""
    if each or len(actuators) == 1:
        return [GovernedUnit(format_gpu_names([gpu]), make_probe(gpu), x) for gpu, x in actuators.items()]
    probe = GroupProbe([make_probe(gpu) for gpu in actuators])
    return [GovernedUnit(format_gpu_names(list(actuators)), probe, _join_actuators(list(actuators.values())))]


def _join_actuators(actuators: Sequence[Actuator]) -> Actuator:
    """The actuator of a group; where nothing can be set, one that offers what all cards have."""
    offered = [one.offered for one in actuators if isinstance(one, NullActuator)]
    return NullActuator(intersect_offered(offered)) if offered else GroupActuator(actuators)


def make_simulated_unit(kind: str, card: str, seed: int, minutes: float) -> GovernedUnit:
    """A random job of a kind that takes `minutes` at default clocks. Raises `InvalidInput`."""
    if kind not in JOB_KINDS:
        raise InvalidInput(f"--simulate: no kind {kind!r}; kinds are {', '.join(JOB_KINDS)}")
    if card not in SIMULATED_CARDS:
        raise InvalidInput(f"--card: no card {card!r}; cards are {', '.join(SIMULATED_CARDS)}")
    if not 1 <= minutes <= 24 * 60:
        raise InvalidInput(f"--minutes: {minutes:g}, from 1 to 1440")
    run = SimulatedRun(sample_job(seed, kind, card, 60 * minutes), seed)
    return GovernedUnit(f"{kind} job on {card} (simulated)", run, run)
