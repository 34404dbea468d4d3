"""Candidate periods: peaks of self-similarity, longer periods that contain them, and refinement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.governor.period.signals import SignalViews
from ekc.governor.samples import Values

MAX_MULTIPLES = 4
"""Number of multiples of a lag whose likeness enters its score; the k-th has weight 1/k."""
PRIOR_LIKENESS, PRIOR_WEIGHT = 0.3, 0.5
"""Prior of likeness and its weight in a score: a long lag, which repeats once, must be more alike."""


@dataclass(frozen=True)
class PeriodCandidates:
    """Peaks of likeness, from short to long lags; arrays of one length."""

    lag_s: Values
    score: Values
    """Weighted mean likeness at each lag and its multiples; at most 1."""


def list_candidates(similarity: SelfSimilarity, shortest_s: float, longest_s: float) -> PeriodCandidates:
    """Peaks of likeness between two lags."""
    likeness = similarity.likeness
    is_peak = (likeness[1:-1] >= likeness[:-2]) & (likeness[1:-1] > likeness[2:])
    peak = np.flatnonzero(is_peak) + 1
    lags = similarity.lag_s[peak]
    peak = peak[(likeness[peak] > 0.0) & (lags >= shortest_s) & (lags <= longest_s)]
    lags = _interpolate_peaks(similarity, peak)
    return PeriodCandidates(lags, score_lags(similarity, lags))


def _interpolate_peaks(similarity: SelfSimilarity, peak: NDArray[np.intp]) -> Values:
    """Lags at which a parabola through each peak and its neighbours is highest."""
    left, top, right = (similarity.likeness[peak + step] for step in (-1, 0, 1))
    bend = np.minimum(left - 2.0 * top + right, -1e-12)
    step = 0.5 * (similarity.lag_s[peak + 1] - similarity.lag_s[peak - 1])
    lags: Values = similarity.lag_s[peak] + step * np.clip(0.5 * (left - right) / bend, -0.5, 0.5)
    return lags


def score_lags(similarity: SelfSimilarity, lags: Values) -> Values:
    """Score of each lag: weighted mean likeness at the lag and its multiples."""
    times = np.arange(1, MAX_MULTIPLES + 1)[:, None]
    weights = (lags * times <= similarity.lag_s[-1]) / times
    total = (similarity.interpolate(lags * times) * weights).sum(axis=0)
    scores: Values = (total + PRIOR_LIKENESS * PRIOR_WEIGHT) / (weights.sum(axis=0) + PRIOR_WEIGHT)
    return scores


MAX_PARTS = 9.7
"""Most micro-steps of an iteration; rarer events, such as a log line, make no iteration."""
MIN_VARIANCE_SHARE, MIN_VARIANCE_UPDATE_FACTOR = 0.01, 1.5
"""Least share of the variance that remains after averaging over a micro-step: a constant, and a multiple of
the square of update over micro-step, since beats between the two leave about that share and look like a
longer period."""
SIMILARITY_PARTS = 8.0
FAST_UPDATE_FACTOR = 1.2
"""Update interval of used views over the shortest one: slower views beat with micro-steps."""
MIN_SCORE, SINGLE_REPEAT_PENALTY = 0.25, 1.2
"""Least score of the longer period, and its increase for a period as long as the recording."""


def find_longer_period(views: SignalViews, part_s: float, longest_s: float) -> tuple[float, int] | None:
    """(longer period in a view averaged over `part_s`, index of the view); None without one."""
    if views.seconds < 2.0 * part_s:
        return None
    slow = _average_views(views, part_s)
    share = slow.values.var(axis=1) / np.maximum(views.values.var(axis=1), 1e-300)
    enough = share >= np.maximum(
        MIN_VARIANCE_SHARE, MIN_VARIANCE_UPDATE_FACTOR * (views.update_s / part_s) ** 2
    )
    enough &= views.update_s <= FAST_UPDATE_FACTOR * views.update_s.min()
    (similarities,) = compute_similarities(slow, (SIMILARITY_PARTS,))
    best, answer = 0.0, None
    for view in np.flatnonzero(enough):
        found = list_candidates(similarities[view], 1.5 * part_s, min(longest_s, MAX_PARTS * part_s))
        good = found.score >= MIN_SCORE + SINGLE_REPEAT_PENALTY * found.lag_s / views.seconds
        if good.any() and (top := float(found.score[good].max())) > best:
            best, answer = top, (float(found.lag_s[good][np.argmax(found.score[good])]), int(view))
    return answer


def _average_views(views: SignalViews, seconds: float) -> SignalViews:
    """Views averaged over `seconds` around each reading, without missing readings."""
    half = 0.5 * seconds / views.interval_s
    at = np.arange(np.ceil(half), views.values.shape[1] - half)
    valid_count = np.stack([_integrate_around(row, at, half) for row in views.valid_mask])
    total = np.stack([_integrate_around(row, at, half) for row in views.values])
    enough = np.asarray(valid_count >= half, dtype=np.float64)
    values = enough * total / np.maximum(valid_count, 1e-9)
    means = values.sum(axis=1, keepdims=True) / np.maximum(enough.sum(axis=1, keepdims=True), 1.0)
    centred: Values = values - enough * means
    return SignalViews(centred, enough, views.interval_s, views.update_s)


def _integrate_around(row: Values, at: Values, half: float) -> Values:
    """Integral of a row over 2 * `half` readings around each point; each reading continues until the next."""
    total = np.concatenate([[0.0], np.cumsum(row)])
    edges = np.arange(len(total))
    around: Values = np.interp(at + half, edges, total) - np.interp(at - half, edges, total)
    return around


PEAK_WINDOW_SHARE = 0.12
"""Distance of a peak from a multiple of the period, in periods, up to which it belongs to it."""
MIN_LIKENESS_SHARE = 0.6
"""Likeness over that of the first peak down to which multiples are used."""


def refine_period(similarity: SelfSimilarity, first_s: float) -> float:
    """The period from the peaks at its multiples: slope of the line from 0 through them."""
    top, height = _find_peak(similarity, first_s, PEAK_WINDOW_SHARE * first_s)
    seconds, tops = top, [top]
    while (at := (len(tops) + 1) * seconds) < similarity.lag_s[-1]:
        top, likeness = _find_peak(similarity, at, PEAK_WINDOW_SHARE * seconds)
        if likeness < MIN_LIKENESS_SHARE * height:
            break
        tops.append(top)
        count = np.arange(1, len(tops) + 1)
        seconds = float(np.dot(count, tops) / np.dot(count, count))
    return seconds


def _find_peak(similarity: SelfSimilarity, around_s: float, within_s: float) -> tuple[float, float]:
    """(lag, likeness) of the highest point around a lag, interpolated by a parabola."""
    low, high = np.searchsorted(similarity.lag_s, (around_s - within_s, around_s + within_s))
    low, high = max(int(low), 1), min(max(int(high), int(low) + 1), len(similarity.lag_s) - 1)
    if low >= high:
        return around_s, -1.0
    top = low + int(np.argmax(similarity.likeness[low:high]))
    left, mid, right = (float(v) for v in similarity.likeness[top - 1 : top + 2])
    bend = left - 2.0 * mid + right
    shift = 0.5 * (left - right) / bend if bend < 0 else 0.0
    step = float(similarity.lag_s[top + 1] - similarity.lag_s[top - 1]) / 2.0
    return float(similarity.lag_s[top]) + min(max(shift, -0.5), 0.5) * step, mid


POINTS_PER_LAG = 4
"""Points per reading at short lags, averages per averaging width at long ones."""
MIN_PAIR_SHARE = 0.5
"""Least number of valid pairs of readings at a lag, as a share of the number expected by chance."""
MIN_ENERGY_SHARE = 1e-3
"""Least difference that counts, as a share of a signal's energy; otherwise a ramp would seem to repeat."""


@dataclass(frozen=True)
class SelfSimilarity:
    """Likeness of one signal with itself at each lag."""

    lag_s: Values
    """Lags in seconds, ascending."""
    likeness: Values
    """1 where the signal repeats exactly, 0 where it differs as much as at shorter lags; may be negative."""

    def interpolate(self, lag_s: Values) -> Values:
        """Likeness at any lags, by linear interpolation."""
        return np.interp(lag_s, self.lag_s, self.likeness)


def compute_similarities(signals: SignalViews, parts: Sequence[float]) -> list[list[SelfSimilarity]]:
    """Self-similarities for each of `parts` and each signal, at lags from 1.5 readings to half the signal.

    Signals are compared after averaging over at least half and at most all of one `parts`-th of the lag.
    Iterations of slightly different length then still correlate, and noise has less influence at longer
    lags. Few parts tolerate more, many parts distinguish more.
    """
    longest = signals.values.shape[1] // 2
    lags: list[list[Values]] = [[np.zeros(0)] for _ in parts]
    likeness: list[list[Values]] = [[np.zeros((len(signals.values), 0))] for _ in parts]
    width = 1
    while width == 1 or width * min(parts) <= longest:
        step = 1.0 / POINTS_PER_LAG if width == 1 else float(max(width // POINTS_PER_LAG, 1))
        at = np.arange(step, min(2.0 * max(parts) * width, longest + 1.0), step)
        difference = _compute_difference(signals, width, at, step)
        for n, part in enumerate(parts):
            in_range = (at >= (part * width if width > 1 else 1.5)) & (at < 2.0 * part * width)
            lags[n].append(at[in_range])
            likeness[n].append(1.0 - difference[:, in_range])
        width *= 2
    pairs = zip((np.concatenate(lag) * signals.interval_s for lag in lags), likeness, strict=True)
    return [[SelfSimilarity(lag_s, row) for row in np.hstack(values)] for lag_s, values in pairs]


def _compute_difference(signals: SignalViews, width: int, lags: Values, step: float) -> Values:
    """Mean square difference of two points one lag from each other, over its mean at the shorter lags."""
    hop, fine = max(1, round(step)), round(max(1.0, 1.0 / step))
    values, valid = _average_signals(signals, width, hop)
    at = np.rint(lags / step).astype(int)
    size = _choose_fft_length(values.shape[1] + int(lags[-1] / hop) + 2 if len(lags) else 1)
    spectrum, mask, squares = (np.fft.rfft(rows, size) for rows in (values, valid, values**2))
    product = np.fft.irfft(np.abs(spectrum) ** 2, size * fine)[:, at] * fine
    energies = np.fft.irfft(2.0 * (squares * mask.conj()).real, size)
    energy = np.stack([np.interp(lags / hop, np.arange(size), row) for row in energies])
    square = 1.0 - 2.0 * product / np.maximum(energy, 1e-9 * energies[:, :1] + 1e-300)
    sparse = _find_sparse_lags(np.fft.irfft(np.abs(mask) ** 2, size), valid, lags / hop)
    square = _fill_unknown(square, lags, sparse)
    mean = np.cumsum(square, axis=1) / np.arange(1, len(lags) + 1)
    difference: Values = (square + MIN_ENERGY_SHARE) / (np.maximum(mean, 0.0) + MIN_ENERGY_SHARE)
    return difference


def _find_sparse_lags(pairs: Values, valid_mask: Values, at: Values) -> NDArray[np.bool_]:
    """Mask of lags with too few valid pairs, where the pattern of missing readings would dominate."""
    count, lag = valid_mask.shape[1], np.arange(pairs.shape[1])
    chance = valid_mask.sum(axis=1, keepdims=True) ** 2 / count * np.maximum(1.0 - lag / count, 0.0)
    few = np.asarray(pairs < MIN_PAIR_SHARE * chance, dtype=np.float64)
    return np.stack([np.interp(at, lag, row) for row in few]) > 0.0


def _fill_unknown(rows: Values, at: Values, is_unknown: NDArray[np.bool_]) -> Values:
    """Interpolate unknown values from both sides, so that they make no peak."""
    for row, mask in zip(rows, is_unknown, strict=True):
        if mask.any() and not mask.all():
            row[mask] = np.interp(at[mask], at[~mask], row[~mask])
    return rows


def _average_signals(signals: SignalViews, width: int, hop: int) -> tuple[Values, Values]:
    """(means over `width` readings, every `hop`-th; mask of those with at least half of the readings)."""
    if width == 1:
        return signals.values, signals.valid_mask
    valid_count = _sum_moving(signals.valid_mask, width)[:, ::hop]
    total = _sum_moving(signals.values, width)[:, ::hop]
    enough = np.asarray(valid_count >= 0.5 * width, dtype=np.float64)
    return enough * total / np.maximum(valid_count, 1.0), enough


def _sum_moving(rows: Values, width: int) -> Values:
    total = np.cumsum(np.pad(rows, ((0, 0), (1, 0))), axis=1)
    sums: Values = total[:, width:] - total[:, :-width]
    return sums


def _choose_fft_length(min_size: int) -> int:
    """Smallest length of at least `min_size` that is fast to transform: 5, 6 or 8 times a power of 2."""
    power = 1 << max(min_size - 1, 1).bit_length()
    return next(size for size in (power * 5 // 8, power * 3 // 4, power) if size >= min_size)
