"""One measured stretch of a job: what it drew and how fast it went.

What was measured in one phase of a job, and what it means against the default, drift taken out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ekc.governor.job_reading import NOT_MEASURED, TARGET_ERROR, JobReading, get_rate_error
from ekc.governor.samples import Values, finite_mean

DRIFT_PER_S = 4e-5
"""How fast the default is expected to wander, as a share: an old reading of it says less (14 % an hour)."""
BYTES_DRIFT_PER_S = 1e-5
"""The same of the bytes per busy second: iterations grow and shrink, what kernels they are made of hardly
(estimate)."""
MIN_ERROR = 0.003
OUTLIER_POWER_SHARE = 0.08
CONTRADICTION_MARGIN = 0.01
"""Share of time that what is expected of a choice may be off in any case."""
CONTRADICTION_SIGMAS = 2.5
"""Standard deviations between the two witnesses from which on they contradict each other."""


@dataclass(frozen=True)
class DefaultComparison:
    """A reading against the default."""

    slowdown: float
    """Share of time per unit of progress; NaN where nothing tells progress."""
    slowdown_error: float
    """Its standard error, but for what it shares."""
    default_error: float
    """Standard error of the default that it was held against: the same in all that is held against it, so it
    does not average out."""
    power_ratio: float
    """Watts over the default's."""
    power_error: float

    @property
    def saving(self) -> float:
        """Share of the joules per unit of progress."""
        return 1 - self.power_ratio * (1 + self.slowdown)


@dataclass
class PhaseReadings:
    """Readings of one phase, in the order of time."""

    default_readings: list[JobReading] = field(default_factory=list)
    other_readings: list[JobReading] = field(default_factory=list)

    def get_default_clock_mhz(self) -> float:
        """What the job runs at by default (a power cap may keep it below the top); NaN if no card tells."""
        told = [r.clock_mhz for r in self.default_readings if np.isfinite(r.clock_mhz)]
        return float(np.median(told)) if told else float("nan")

    def get_default_watts(self) -> float:
        """What the job draws by default."""
        return float(np.mean([r.watts for r in self.default_readings]))

    def get_default_sm_util(self) -> float:
        """At the default, 0 to 1; 1 where the card does not tell."""
        return float(
            np.nan_to_num(finite_mean(np.array([r.sm_util for r in self.default_readings])) / 100, nan=1.0)
        )

    def is_outlier(self, reading: JobReading) -> bool:
        """Whether a reading draws quite other than the last under the same limits: something came between."""
        same = [r for r in self.default_readings + self.other_readings if r.settings == reading.settings]
        scatter = reading.pace.moved_error if not np.isfinite(reading.pace.beats) else 0.0
        limit = OUTLIER_POWER_SHARE + 2 * float(np.nan_to_num(scatter))
        return bool(same) and abs(reading.watts / same[-1].watts - 1) > limit

    def has_uncertain_progress(self) -> bool:
        """Whether no reading so far knew its pace well: work without a beat."""
        return min(get_rate_error(r.pace) for r in self.default_readings + self.other_readings) > TARGET_ERROR

    def has_refuted(self, expected: DefaultComparison) -> bool:
        """Whether the last reading, against the last default alone, is quite other than was expected."""
        seen = PhaseReadings(self.default_readings[-1:], []).compare_to_default(self.other_readings[-1])
        if not np.isfinite(seen.slowdown):
            return False
        error = float(np.sqrt(seen.slowdown_error**2 + seen.default_error**2 + expected.slowdown_error**2))
        return abs(seen.slowdown - expected.slowdown) > CONTRADICTION_MARGIN + CONTRADICTION_SIGMAS * error

    def estimate_default_error(self, at_s: float) -> float:
        """How well the default's pace is known at a moment: the standard error of the better witness."""
        errors = [self._estimate_default_rate(at_s, witness)[1] for witness in ("beats", "moved")]
        return float(np.nanmin([*errors, 1.0]))

    def discard_beats(self) -> None:
        """Forget what beats said: they were none."""
        for readings in (self.default_readings, self.other_readings):
            readings[:] = [
                replace(r, pace=replace(r.pace, beats=NOT_MEASURED, beats_error=NOT_MEASURED))
                for r in readings
            ]

    def compare_to_default(self, reading: JobReading) -> DefaultComparison:
        """Against the default as it would have been measured at that moment (A/B/A)."""
        beats = self._compare_witness(reading, "beats")
        # Only the time in which kernels run is stretched by a clock; bytes tell of one memory clock alone.
        bytes_ = self.get_default_sm_util() * self._compare_witness(reading, "moved")
        told = beats[None, :] if reading.settings.memory_mhz is not None else np.stack([beats, bytes_])
        slowdown, error, shared = _combine_witnesses(told)
        watts, off = self._estimate_default_watts(reading.at_s)
        return DefaultComparison(
            slowdown, error, shared, reading.watts / watts, float(np.hypot(off, reading.watts_error))
        )

    def _compare_witness(self, reading: JobReading, witness: str) -> Values:
        """What one witness says: slowdown, its own error, and that of the default."""
        base, shared = self._estimate_default_rate(reading.at_s, witness)
        pace, error = (getattr(reading.pace, name) for name in (witness, f"{witness}_error"))
        return np.array([base / pace - 1, error, shared])

    def _estimate_default_rate(self, at_s: float, witness: str) -> tuple[float, float]:
        """Pace of the default at a moment, and its error: recent and sure readings weigh most."""
        paces = np.array([getattr(r.pace, witness) for r in self.default_readings])
        errors = np.array([getattr(r.pace, f"{witness}_error") for r in self.default_readings])
        return self._average_at(at_s, paces, errors, DRIFT_PER_S if witness == "beats" else BYTES_DRIFT_PER_S)

    def _estimate_default_watts(self, at_s: float) -> tuple[float, float]:
        watts = np.array([r.watts for r in self.default_readings])
        return self._average_at(
            at_s, watts, np.array([r.watts_error for r in self.default_readings]), DRIFT_PER_S
        )

    def _average_at(
        self, at_s: float, values: Values, errors: Values, drift_per_s: float
    ) -> tuple[float, float]:
        told = np.isfinite(values) & np.isfinite(errors)
        if not told.any():
            return float("nan"), float("nan")
        away = np.array([r.at_s for r in self.default_readings]) - at_s
        weight = np.where(told, 1 / (np.where(told, errors, 1.0) ** 2 + (drift_per_s * away) ** 2), 0.0)
        mean = float((np.where(told, values, 0.0) * weight).sum() / weight.sum())
        return mean, float(1 / np.sqrt(weight.sum()))


def _combine_witnesses(comparisons: Values) -> tuple[float, float, float]:
    """Witnesses, rows of (slowdown, own error, shared error), joined by their errors; where they contradict
    each other, none is believed so much."""
    comparisons = comparisons[np.isfinite(comparisons).all(axis=1)]
    if not len(comparisons):
        return NOT_MEASURED, NOT_MEASURED, NOT_MEASURED
    errors = np.hypot(comparisons[:, 1], comparisons[:, 2])
    weight = 1 / np.maximum(errors, MIN_ERROR) ** 2
    weight /= weight.sum()
    own, shared = (
        float(np.sqrt(weight**2 @ np.maximum(comparisons[:, n], MIN_ERROR / 2) ** 2)) for n in (1, 2)
    )
    apart = float(np.ptp(comparisons[:, 0]))
    torn = apart > CONTRADICTION_SIGMAS * float(np.sqrt((errors**2).sum()))
    return float(weight @ comparisons[:, 0]), apart / 2 if torn else own, shared
