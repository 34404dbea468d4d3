"""Folding: a short period at which all readings fit one profile, where self-similarity finds a multiple.

A sensor that shows moments repeats a pattern exactly only after a whole number of readings, so that the most
alike stretches may be several short iterations long. Readings folded at a period, at their exact times, fit
one profile at any real-valued period.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.governor.samples import Values

HARMONICS = 8
"""Number of harmonics by whose power the periods to fold at are chosen."""
PEAKS = 10
"""Number of periods chosen."""
BIN_COUNTS = (32, 16, 8)
"""Bins of a profile; the number with the largest gain is taken."""
REFINING_STEPS = (-1.0, 0.0, 1.0)
"""Frequencies around each one chosen, in cycles over the stretch times the largest number of bins."""
MIN_GAIN_SHARE = 0.88
"""Least gain of a period, as a share of the best."""
MAX_ROUGHNESS_RATIO = 1.3
"""Largest roughness of a profile, as a multiple of the least."""
SAME_PERIOD_RATIO = 0.01
"""Relative difference up to which two periods are one."""
UPDATES_RANGE = (7.0, 20.0)
"""Range of a folded period in updates of the sensor. Readings of a shorter one show no pattern; the lag of a
longer one is near enough to a whole number of readings for self-similarity."""
MIN_EXPLAINED = 0.3
"""Least share of the variance that a profile explains: that of noise explains less."""
MIN_CORRELATION_RATIO = 0.94
"""Least correlation of neighbours in phase, over that of readings at a distance of one period and at that of
the period found by self-similarity: micro-steps and iterations of uneven length resemble others at some
distance, but fit no single profile."""
FINE_STEPS = 9
"""Frequencies around the chosen one at which neighbours in phase are compared."""


@dataclass(frozen=True)
class FoldedProfiles:
    """Profiles of one signal folded at several periods; arrays of (periods,)."""

    period_s: Values
    gain: Values
    """Gain in the Bayesian information criterion over a constant, in the best number of bins."""
    roughness: Values
    """Total variation of each profile around the period, in the signal's unit."""
    explained: Values
    """Share of the variance that the profile explains, corrected for the number of bins; at most 1."""


def find_folded_period(
    values: Values, valid_mask: Values, interval_s: float, update_s: float, found_s: float
) -> tuple[float, float] | None:
    """(period in seconds at which an even signal, (n,), fits one profile, share of the variance that the
    profile explains, as `FoldedProfiles.explained`); None without one.

    `found_s`: the period found so far, which may be a multiple. Of the periods up to it with nearly the best
    gain the longest is taken whose profile is nearly the least rough. A multiple repeats its profile, and a
    fraction at which the readings fall on the same moments has its profile in the wrong order: both are
    rougher.
    """
    shortest_s, longest_s = (updates * update_s for updates in UPDATES_RANGE)
    chosen_s = _choose_periods(values, interval_s, shortest_s, 1.05 * found_s)
    step_hz = 1.0 / (max(BIN_COUNTS) * len(values) * interval_s)
    hertz = 1.0 / np.append(chosen_s, found_s)[:, None] + step_hz * np.array(REFINING_STEPS)
    is_valid = valid_mask > 0
    time_s: Values = np.flatnonzero(is_valid).astype(np.float64) * interval_s
    profiles = fold_signal(time_s, values[is_valid], 1.0 / hertz.ravel())
    best = _find_smoothest(profiles)
    period_s, explained = float(profiles.period_s[best]), float(profiles.explained[best])
    if not shortest_s <= period_s <= longest_s or explained < MIN_EXPLAINED:
        return None
    lags = period_s / interval_s, found_s / interval_s
    alike = max(_correlate_at(values, valid_mask, lag) for lag in lags)
    hertz = 1.0 / period_s + step_hz * np.linspace(-1.0, 1.0, FINE_STEPS)
    neighbours = max(_correlate_in_phase(time_s, values[is_valid], 1.0 / f) for f in hertz)
    return (period_s, explained) if neighbours >= MIN_CORRELATION_RATIO * alike else None


def _choose_periods(values: Values, interval_s: float, shortest_s: float, longest_s: float) -> Values:
    """Periods in a range whose harmonics have much power.

    Harmonics beyond half the rate of readings are found where sampling mirrors them.
    """
    size = 1 << int(np.ceil(np.log2(4 * HARMONICS * len(values))))
    power = np.abs(np.fft.rfft(values, size)) ** 2
    at = np.arange(int(size * interval_s / longest_s) + 1, int(size * interval_s / shortest_s) + 1)
    mirrored = at * np.arange(1, HARMONICS + 1)[:, None] % size
    total = power[np.minimum(mirrored, size - mirrored)].sum(axis=0)
    peak = np.flatnonzero((total[1:-1] >= total[:-2]) & (total[1:-1] > total[2:])) + 1
    return size * interval_s / at[peak[np.argsort(total[peak])[-PEAKS:]]]


def fold_signal(time_s: Values, values: Values, period_s: Values) -> FoldedProfiles:
    """Profiles of a signal, (n,), at its times, folded at each period."""
    count, periods, most = len(values), len(period_s), max(BIN_COUNTS)
    deviations = values - values.mean()
    square = float(deviations @ deviations) + 1e-300
    place = (time_s / period_s[:, None] % 1.0 * most).astype(np.intp).clip(max=most - 1)
    place += most * np.arange(periods)[:, None]
    weights = np.broadcast_to(deviations, place.shape).ravel()
    sums = np.bincount(place.ravel(), weights, periods * most).reshape(periods, most)
    counts = np.bincount(place.ravel(), minlength=periods * most).reshape(periods, most)
    gain, roughness, explained = np.full(periods, -np.inf), np.zeros(periods), np.zeros(periods)
    for bins in BIN_COUNTS:
        total, number = (x.reshape(periods, bins, -1).sum(axis=2) for x in (sums, counts))
        means, known = total / np.maximum(number, 1), (number > 0).sum(axis=1)
        rest = np.maximum(1.0 - (means * total).sum(axis=1) / square, 1e-9)
        more = -count * np.log(rest) - (known - 1) * np.log(count)
        is_better = more > gain
        gain = np.where(is_better, more, gain)
        roughness = np.where(is_better, _measure_roughness(means, number > 0), roughness)
        explained = np.where(is_better, 1.0 - rest * (count - 1) / np.maximum(count - known, 1), explained)
    return FoldedProfiles(period_s, gain, roughness, explained)


def _find_smoothest(profiles: FoldedProfiles) -> int:
    """Index of the best of the periods with a good and smooth profile that are nearly the longest such."""
    best = float(profiles.gain.max())
    good = np.flatnonzero(profiles.gain >= best - (1.0 - MIN_GAIN_SHARE) * abs(best))
    smooth = good[profiles.roughness[good] <= MAX_ROUGHNESS_RATIO * profiles.roughness[good].min()]
    longest_s = profiles.period_s[smooth].max()
    same = good[np.abs(profiles.period_s[good] / longest_s - 1.0) < SAME_PERIOD_RATIO]
    return int(same[np.argmax(profiles.gain[same])])


def _measure_roughness(means: Values, is_known: Values) -> Values:
    """Total variation around each row of means, from one known bin to the next."""
    bins = means.shape[1]
    # The last known bin up to each one, in the second turn around the row.
    known = np.where(np.tile(is_known, 2), np.arange(2 * bins), -1)
    last = np.maximum.accumulate(known, axis=1)[:, bins - 1 :] % bins
    around = np.take_along_axis(means, last, axis=1)
    total: Values = np.abs(np.diff(around, axis=1)).sum(axis=1)
    return total


def _correlate_at(values: Values, valid_mask: Values, lag: float) -> float:
    """Correlation of readings at a distance of one lag, by the better of the two whole numbers next to it."""
    found = []
    for step in (int(lag), int(lag) + 1):
        first, second, both = values[:-step], values[step:], valid_mask[:-step] * valid_mask[step:]
        product, squares = both @ (first * second), both @ (first**2 + second**2)
        found.append(2.0 * float(product) / max(float(squares), 1e-300))
    return max(found)


def _correlate_in_phase(time_s: Values, values: Values, period_s: float) -> float:
    """Correlation of each reading with the next one in phase, however long ago that was."""
    deviations = values[np.argsort(time_s / period_s % 1.0)] - values.mean()
    steps = np.diff(deviations, append=deviations[0])
    return 1.0 - float(steps @ steps) / max(2.0 * float(deviations @ deviations), 1e-300)
