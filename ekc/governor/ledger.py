"""What was measured in one phase of a job, and what it means against the default, drift taken out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ekc.governor.reading import Reading

UNTOLD_ERROR = 0.25
"""Standard error of a slowdown that nothing tells: the prior then decides."""


@dataclass(frozen=True)
class Outcome:
    """A reading against the default."""

    slowdown: float
    error: float
    """Standard error of the slowdown."""
    power: float
    """Watts over the default's."""

    @property
    def saving(self) -> float:
        """Share of the joules per unit of progress."""
        return 1 - self.power * (1 + self.slowdown)


@dataclass
class Ledger:
    """Readings of one phase, in the order of time."""

    defaults: list[Reading] = field(default_factory=list)
    others: list[Reading] = field(default_factory=list)

    def clock_mhz(self) -> float:
        """What the job runs at by default (a power cap may keep it below the top)."""
        return float(np.median([r.clock_mhz for r in self.defaults]))

    def sm_util(self) -> float:
        """At the default, 0 to 1."""
        return float(np.mean([r.sm_util for r in self.defaults])) / 100

    def outcome(self, reading: Reading) -> Outcome:
        """Against the default as it would have been measured at that moment (A/B/A)."""
        at = [r.at_s for r in self.defaults]
        power = reading.watts / float(np.interp(reading.at_s, at, [r.watts for r in self.defaults]))
        told = [r for r in self.defaults if np.isfinite(r.pace)]
        if not told or not np.isfinite(reading.pace):
            return Outcome(float("nan"), UNTOLD_ERROR, power)
        pace = float(np.interp(reading.at_s, [r.at_s for r in told], [r.pace for r in told]))
        base = min(told, key=lambda r: abs(r.at_s - reading.at_s)).error
        return Outcome(pace / reading.pace - 1, float(np.hypot(base, reading.error)), power)
