"""What a search turns: the limit of the SM clock or, where clocks cannot be set, the power cap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.governor.curve import CoefficientPrior
from ekc.governor.ledger import PhaseReadings
from ekc.governor.protocols import Gears, Settings
from ekc.governor.samples import Values


@dataclass(frozen=True)
class ControlVariable:
    """One limit, and what is believed of its effect before anything was read.

    Beliefs are over x = default / limit - 1 for time, and over y = 1 - limit / default for power, where the
    default is the clock at which the job runs, or the watts that its kernels draw, without the limit.
    """

    name: str
    time_prior: CoefficientPrior
    power_prior: CoefficientPrior
    is_bounded: bool
    """Whether kernels can be slowed by no more than the limit was lowered."""

    def select_gears(self, gears: Gears) -> Values:
        """Where it can be set, ascending."""
        return np.array(gears.sm_mhz if self.name == "sm" else gears.power_w, float)

    def get_default_value(self, readings: PhaseReadings) -> float:
        """Where the default stands on its scale."""
        return (
            readings.get_default_clock_mhz()
            if self.name == "sm"
            else CAP_MARGIN * readings.get_default_watts()
        )

    def get_value(self, settings: Settings) -> float | None:
        """Its value in settings."""
        return settings.sm_mhz if self.name == "sm" else settings.power_w

    def make_settings(self, value: float, memory_mhz: int | None = None) -> Settings:
        """Set so."""
        if self.name == "sm":
            return Settings(sm_mhz=int(value), memory_mhz=memory_mhz)
        return Settings(power_w=float(value), memory_mhz=memory_mhz)


CAP_MARGIN = 1.25
"""A cap is felt before the mean comes near it: some kernels draw more than the mean (estimate)."""
SM_CLOCK = ControlVariable(
    "sm", CoefficientPrior((0.6, 0.3), (0.35, 0.6)), CoefficientPrior((-1.3, 0.4, 0.0), (0.7, 1.5, 2.0)), True
)
"""Recorded kernels (`jobs/facts.py`): time follows 0.55 to 1 of the clock at its top, and more below."""
POWER_CAP = ControlVariable(
    "cap",
    CoefficientPrior((0.2, 0.5), (0.4, 0.8)),
    CoefficientPrior((-0.5, -0.5, 0.0), (0.4, 1.0, 1.5)),
    False,
)
"""A watt less costs little time at first, and more and more: power follows about the cube of the clock."""


def choose_control(gears: Gears) -> ControlVariable:
    """What there is to turn; clocks before caps."""
    return SM_CLOCK if gears.sm_mhz or not gears.power_w else POWER_CAP
