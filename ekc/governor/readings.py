"""Measured stretches of a job, and their comparison with the default of their phase, corrected for drift."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from ekc.governor.protocols import LIMITS, Settings
from ekc.governor.samples import Values, finite_mean

NOT_MEASURED = float("nan")
TARGET_ERROR = 0.006
"""Relative standard error of progress at which a reading is not prolonged."""
MIN_WATTS_ERROR = 0.005
"""Least relative error of a mean of watts: a sensor measures only part of the time."""
DRIFT_PER_S = 4e-5
"""Expected relative drift of the default per second (14 % an hour): older readings of it have less weight."""
BYTES_DRIFT_PER_S = 1e-5
"""The same for bytes per busy second: iterations hardly change their mix of kernels (estimate)."""
_DRIFTS_PER_S = {"beats": DRIFT_PER_S, "moved": BYTES_DRIFT_PER_S}
MIN_ERROR = 0.003
"""Least relative error of a measure of progress."""
OUTLIER_POWER_SHARE = 0.08
"""Relative difference of power from the last reading under the same limits that makes an outlier."""
STATED_DEGREES = 4
"""Degrees of freedom that the stated errors count for, beside the scatter of repeated readings."""
CONTRADICTION_MARGIN = 0.01
"""Difference between expected and measured slowdown that is tolerated in any case."""
CONTRADICTION_SIGMAS = 2.5
"""Standard deviations of difference from which on two slowdowns contradict each other."""


@dataclass(frozen=True)
class ProgressRate:
    """Progress per second by two independent measures with relative standard errors; NaN if missing."""

    beats: float = NOT_MEASURED
    """Steps or periods per second."""
    beats_error: float = NOT_MEASURED
    moved: float = NOT_MEASURED
    """Memory use (percent) per second in which a kernel ran: at one memory clock the same kernels move the
    same bytes, however long the host waits."""
    moved_error: float = NOT_MEASURED
    period_s: float = NOT_MEASURED
    """Seconds of one step or period."""


@dataclass(frozen=True)
class JobReading:
    """Means over a stretch of the job after its limits took effect."""

    settings: Settings
    at_s: float
    """Middle of the stretch, in seconds on the probe's clock."""
    seconds: float
    watts: float
    """Mean power of the board."""
    pace: ProgressRate
    sm_util: float
    """SM use in percent."""
    memory_util: float
    """Memory use in percent."""
    clock_mhz: float
    """Median SM clock."""
    watts_error: float = MIN_WATTS_ERROR
    """Relative standard error of the watts."""


def get_rate_error(pace: ProgressRate) -> float:
    """Relative standard error of the better measure; 0 without any, since a longer reading would not help."""
    errors = [e for e in (pace.beats_error, pace.moved_error) if math.isfinite(e)]
    return min(errors, default=0.0)


@dataclass(frozen=True)
class DefaultComparison:
    """A reading compared with the default."""

    slowdown: float
    """Additional time per unit of progress, as a share; NaN where progress is not measured."""
    slowdown_error: float
    """Standard error of the slowdown, without the default's."""
    default_error: float
    """Standard error of the default; readings that share a default share it: it does not average out."""
    power_ratio: float
    power_error: float
    """Relative standard error of the power ratio."""

    @property
    def saving(self) -> float:
        """Joules saved per unit of progress, as a share."""
        return 1 - self.power_ratio * (1 + self.slowdown)


@dataclass
class PhaseReadings:
    """Readings of one phase, at the default limits and under others, in order of time."""

    default_readings: list[JobReading] = field(default_factory=list)
    other_readings: list[JobReading] = field(default_factory=list)

    def get_default_clock_mhz(self) -> float:
        """SM clock at the default limits (a power cap may keep it below the top); NaN if not measured."""
        clocks = [r.clock_mhz for r in self.default_readings if np.isfinite(r.clock_mhz)]
        return float(np.median(clocks)) if clocks else float("nan")

    def get_default_watts(self) -> float:
        """Mean watts at the default limits."""
        return float(np.mean([r.watts for r in self.default_readings]))

    def get_default_sm_util(self) -> float:
        """SM use at the default limits, 0 to 1; 1 if not measured."""
        return float(
            np.nan_to_num(finite_mean(np.array([r.sm_util for r in self.default_readings])) / 100, nan=1.0)
        )

    def is_outlier(self, reading: JobReading) -> bool:
        """Whether other work ran: power differs much from the last reading under the same limits, or is above
        that of a looser limit or below that of a tighter one."""
        scatter = reading.pace.moved_error if not np.isfinite(reading.pace.beats) else 0.0
        margin = OUTLIER_POWER_SHARE + 2 * float(np.nan_to_num(scatter))
        last_under_each = {r.settings: r for r in self.other_readings}
        for other in (*self.default_readings[-1:], *last_under_each.values()):
            change = reading.watts / other.watts - 1
            if change > margin and _is_within(reading.settings, other.settings):
                return True
            if change < -margin and _is_within(other.settings, reading.settings):
                return True
        return False

    def has_uncertain_progress(self) -> bool:
        """Whether no reading so far measured progress to `TARGET_ERROR`: work without a beat."""
        return min(get_rate_error(r.pace) for r in self.default_readings + self.other_readings) > TARGET_ERROR

    def has_refuted(self, expected: DefaultComparison) -> bool:
        """Whether the last reading, compared with the last default alone, contradicts what was expected."""
        last = PhaseReadings(self.default_readings[-1:], []).compare_to_default(self.other_readings[-1])
        if not np.isfinite(last.slowdown):
            return False
        error = float(np.sqrt(last.slowdown_error**2 + last.default_error**2 + expected.slowdown_error**2))
        return abs(last.slowdown - expected.slowdown) > CONTRADICTION_MARGIN + CONTRADICTION_SIGMAS * error

    def compare_settings(self, settings: Settings) -> list[DefaultComparison]:
        """Readings under some settings that measured progress, compared with the default."""
        outcomes = [self.compare_to_default(r) for r in self.other_readings if r.settings == settings]
        return [o for o in outcomes if np.isfinite(o.slowdown)]

    def discard_beats(self) -> None:
        """Drop beats from all readings: the period that was found is none."""
        none = {"beats": NOT_MEASURED, "beats_error": NOT_MEASURED}
        for readings in (self.default_readings, self.other_readings):
            readings[:] = [replace(r, pace=replace(r.pace, **none)) for r in readings]

    def compare_to_default(self, reading: JobReading) -> DefaultComparison:
        """Compare a reading with the default interpolated to its time (A/B/A)."""
        beats = self._compare_measure(reading, "beats")
        # A clock stretches only the time in which kernels run. Bytes are comparable at one memory clock only.
        bytes_ = self.get_default_sm_util() * self._compare_measure(reading, "moved")
        measures = beats[None, :] if reading.settings.memory_mhz is not None else np.stack([beats, bytes_])
        slowdown, error, shared = _combine_measures(measures)
        default_watts = [(r.watts, r.watts_error) for r in self.default_readings]
        watts, watts_error = self._average_at(reading.at_s, default_watts, DRIFT_PER_S)
        return DefaultComparison(
            slowdown, error, shared, reading.watts / watts, float(np.hypot(watts_error, reading.watts_error))
        )

    def _compare_measure(self, reading: JobReading, measure: str) -> Values:
        """(slowdown, its own error, error of the default) by one measure of progress."""
        paces = [r.pace for r in (*self.default_readings, reading)]
        *default, (rate, error) = [(getattr(p, measure), getattr(p, f"{measure}_error")) for p in paces]
        default_rate, shared = self._average_at(reading.at_s, default, _DRIFTS_PER_S[measure])
        scale = self.estimate_error_scale(measure)
        return np.array([default_rate / rate - 1, scale * error, scale * shared])

    def estimate_error_scale(self, measure: str) -> float:
        """Scatter of readings under the same limits over what their errors say, `beats` or `moved`; 1 without
        repeated readings. The errors themselves count as `STATED_DEGREES` degrees of freedom."""
        drift_per_s = _DRIFTS_PER_S[measure]
        groups: dict[Settings, list[tuple[float, float, float]]] = {}
        for reading in self.default_readings + self.other_readings:
            value, error = (getattr(reading.pace, name) for name in (measure, f"{measure}_error"))
            if math.isfinite(value) and math.isfinite(error):
                groups.setdefault(reading.settings, []).append((value, error, reading.at_s))
        squares, degrees = float(STATED_DEGREES), STATED_DEGREES
        for group in groups.values():
            if len(group) > 1:
                value, error, at_s = np.array(group).T
                variance = (
                    np.maximum(error, MIN_ERROR / 2) ** 2 + (drift_per_s * (at_s - np.median(at_s))) ** 2
                )
                mean = (value / variance).sum() / (1 / variance).sum()
                squares += float(((value / mean - 1) ** 2 / variance).sum())
                degrees += len(group) - 1
        return math.sqrt(squares / degrees)

    def _average_at(
        self, at_s: float, figures: list[tuple[float, float]], drift_per_s: float
    ) -> tuple[float, float]:
        """(weighted mean of the default at a time, its error), from the figure of each reading of the default
        and its error; recent and exact ones weigh most."""
        values, errors = np.array(figures).T
        is_valid = np.isfinite(values) & np.isfinite(errors)
        if not is_valid.any():
            return float("nan"), float("nan")
        age_s = np.array([r.at_s for r in self.default_readings]) - at_s
        variance = np.where(is_valid, errors, 1.0) ** 2 + (drift_per_s * age_s) ** 2
        weight = np.where(is_valid, 1 / variance, 0.0)
        mean = float((np.where(is_valid, values, 0.0) * weight).sum() / weight.sum())
        return mean, float(1 / np.sqrt(weight.sum()))


def _is_within(settings: Settings, other: Settings) -> bool:
    """Whether no limit of `settings` is looser than that of `other`."""
    return all((getattr(settings, x) or math.inf) <= (getattr(other, x) or math.inf) for x in LIMITS)


def _combine_measures(comparisons: Values) -> tuple[float, float, float]:
    """Weighted mean of measures, rows of (slowdown, own error, shared error); where they contradict each
    other, half of their difference is the error."""
    comparisons = comparisons[np.isfinite(comparisons).all(axis=1)]
    if not len(comparisons):
        return NOT_MEASURED, NOT_MEASURED, NOT_MEASURED
    errors = np.hypot(comparisons[:, 1], comparisons[:, 2])
    weight = 1 / np.maximum(errors, MIN_ERROR) ** 2
    weight /= weight.sum()
    own, shared = (
        float(np.sqrt(weight**2 @ np.maximum(comparisons[:, n], MIN_ERROR / 2) ** 2)) for n in (1, 2)
    )
    difference = float(np.ptp(comparisons[:, 0]))
    is_contradiction = difference > CONTRADICTION_SIGMAS * float(np.sqrt((errors**2).sum()))
    return float(weight @ comparisons[:, 0]), difference / 2 if is_contradiction else own, shared
