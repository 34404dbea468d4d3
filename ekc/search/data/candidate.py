"""A schedule in a tuning run, as plain data: model inputs, predictions, measurements and verdict."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import Resources
from ekc.devices.device import Metering, Timing
from ekc.devices.observer import collect_readings
from ekc.devices.statistics import Interval, MeasuredValue, estimate_mean_interval
from ekc.ir.schedule.schedule import Schedule
from ekc.search.data.trial import Trial


@dataclass
class Candidate:
    """One schedule in a tuning run. Latency, power and energy are per call of the operator."""

    schedule: Schedule
    structure: str
    """Name of the structure in the search space; "naive" for the baseline."""
    features: NDArray[np.float32]
    """Features of the schedule for the models, one for each of `cost_model.features.FEATURE_NAMES`."""
    expected_latency_s: float
    """Latency that the prior expects."""
    expected_power_w: float
    """Board power that the prior expects."""
    standby_w: float
    """Part of the expected power that stays the same if the work takes longer."""
    round: int
    """Round of the search, from 1; 0 for the baseline."""
    booster_inputs: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """Inputs of the boosted model (`cost_model.boosted_prior.INPUT_NAMES`); empty where it is not used."""
    status: str = "ok"
    """"ok", or the failure, as `Trial.status`."""
    predicted_power_w: float = float("nan")
    timings: list[Timing] = field(default_factory=list)
    """Latency measurements, in order."""
    meterings: list[Metering] = field(default_factory=list)
    """Energy measurements, in order."""
    checked: str = ""
    """Verdict of executing the kernel and comparing its results; "" if it was not executed."""
    in_turn: bool = False
    """Whether the finalists were metered in turn."""
    metering_s: float | None = None
    """Seconds of metering that the run had spent when this schedule was first metered."""

    @property
    def resources(self) -> tuple[Resources, ...]:
        """Registers and spills from ptxas, one entry per launch; empty in records of an older ekc."""
        return self.timings[0].resources if self.timings else ()

    @property
    def digest(self) -> str:
        """Digest of the schedule."""
        return self.schedule.digest

    @property
    def ok(self) -> bool:
        """Whether it was timed and did not fail."""
        return self.status == "ok" and bool(self.timings)

    @property
    def latency_s(self) -> float:
        """Mean latency of its timings."""
        return statistics.fmean(t.latency_s for t in self.timings)

    @property
    def latency_interval_s(self) -> Interval | None:
        """95 % confidence interval of the mean latency; None before the first timing."""
        return estimate_mean_interval([MeasuredValue(t.latency_s, t.interval_s) for t in self.timings])

    @property
    def metered(self) -> bool:
        """Whether its energy was measured."""
        return bool(self.meterings)

    @property
    def power_w(self) -> float:
        """Mean metered power, or the predicted power before the first metering."""
        if not self.meterings:
            return self.predicted_power_w
        return statistics.fmean(m.power_w for m in self.meterings)

    @property
    def energy_j(self) -> float:
        """Energy per call: mean power times mean latency."""
        return self.power_w * self.latency_s

    def to_trial(self) -> Trial:
        """Convert to a trial of the result."""
        last = [m.conditions for m in self.timings[-1:]] + [m.conditions for m in self.meterings[-1:]]
        conditions = last[-1] if last else None
        energies = tuple(MeasuredValue(m.energy_j, m.energy_interval_j) for m in self.meterings)
        return Trial(
            schedule=self.schedule,
            structure=self.structure,
            status=self.status,
            latency_s=self.latency_s if self.timings else None,
            latency_interval_s=self.latency_interval_s,
            power_w=_finite_or_none(self.power_w),
            energy_j=_finite_or_none(self.energy_j) if self.timings else None,
            energy_interval_j=estimate_mean_interval(energies),
            energies_j=energies,
            in_turn=self.in_turn,
            metered=self.metered,
            notes=tuple(dict.fromkeys(note for m in self.meterings for note in m.notes)),
            clock_mhz=_finite_or_none(conditions.clock_mhz) if conditions else None,
            throttle=conditions.throttle if conditions else (),
            round=self.round,
            checked=self.checked,
            simulated=conditions.simulated if conditions else False,
            metering_s=self.metering_s,
            readings=collect_readings([*self.timings, *self.meterings]),
        )


def _finite_or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None
