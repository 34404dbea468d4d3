"""Detection of changes of a job: signatures (power, SM and memory use) of recordings under the choice, called
looks, compared with a reference; and loss of its beat."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from ekc.governor.samples import SensorSamples, Values, finite_mean

MIN_CHANGE = 0.08
"""Least relative change of a signature that counts as a change of the job."""
MIN_DEVIATION = 0.03
"""Least relative change after which the default is measured again."""
SCATTER_SIGMAS = 4.0
"""Standard deviations of scatter below which a difference is ignored."""
REFERENCE_UPDATE_SHARE = 0.5
"""Weight of a look in the running reference, which so follows slow drift."""
SCATTER_CLIP, MIN_SCATTER_CLIP = 2.0, 0.01
"""Largest difference of a look that updates the scatter: a multiple of the scatter, and a least value."""
SCATTER_UPDATE_SHARE = 0.1
"""Weight of a look in the running variance of scatter."""
LARGE_CHANGE = 0.25
"""Relative change from which on a change is `large`: no choice of the job was confirmed yet."""
CONFIRM_S = 75.0
"""Seconds that a change must last: evaluations and checkpoints are shorter."""
UNSTABLE_S = 2 * CONFIRM_S
"""Seconds of looks of which most must deviate, where some do not."""
MAX_REMEMBERED = 64
"""Number of looks that are kept."""
REFERENCE_LOOK_COUNT = 4
"""Number of looks that make the first reference."""
MAX_UNEXPECTED_USE = 0.15
"""Relative difference of use beyond that of one or two offered values: the job changed when the reference was
made."""
MAX_LOOKS = 6
"""Most looks that are averaged where single ones scatter too much."""
MIN_BEATS_FOUND = 3
"""Number of looks that must have found the beat before its loss counts."""


@dataclass
class ChangeDetector:
    """Compares looks with a reference signature."""

    look_s: float
    expected_signature: Values | None = None
    """Signature of readings under the same limits, or nearly the same; None without one."""
    _first_looks: list[Values] = field(default_factory=list)
    _reference: Values | None = None
    _scatter: Values = field(default_factory=lambda: np.zeros(3))
    _last_looks: deque[Values] = field(default_factory=lambda: deque(maxlen=MAX_LOOKS))
    _deviated_flags: deque[bool] = field(default_factory=lambda: deque(maxlen=MAX_REMEMBERED))

    def is_ready(self) -> bool:
        """Whether there is a reference."""
        return self._reference is not None

    def measure_distance(self, samples: SensorSamples) -> float:
        """Relative distance of the last, consecutive looks from the reference; 0 without one."""
        if not np.isfinite(samples.power_w).any():
            return 0.0
        look = compute_signature(samples)
        if self._reference is None:
            self._learn_reference(look)
            return 0.0
        self._last_looks.append(look)
        together = np.array(self._last_looks)[-self._count_needed_looks() :]
        difference = np.abs(together.mean(axis=0) / self._reference - 1)
        is_significant = difference > SCATTER_SIGMAS * self._scatter / np.sqrt(len(together))
        distance = float(difference[is_significant].max(initial=0.0))
        self._deviated_flags.append(self.is_deviating(distance))
        return distance

    def is_deviating(self, distance: float) -> bool:
        """Whether a distance is worth confirming."""
        return self.is_ready() and distance > MIN_DEVIATION

    def is_unstable(self) -> bool:
        """Whether most looks deviated for `UNSTABLE_S` without a lasting change, as do long iterations."""
        count = ceil(UNSTABLE_S / self.look_s)
        last = list(self._deviated_flags)[-count:]
        return len(last) == count and sum(last) > count / 2

    def update_reference(self) -> None:
        """Take the last look, which was as expected, into reference and scatter."""
        if self._reference is None or not self._last_looks:
            return
        difference = np.abs(self._last_looks[-1] / self._reference - 1)
        # Clipped, since the first look of a change may seem as expected: it must not count as scatter.
        difference = np.minimum(difference, np.maximum(SCATTER_CLIP * self._scatter, MIN_SCATTER_CLIP))
        variance = (1 - SCATTER_UPDATE_SHARE) * self._scatter**2 + SCATTER_UPDATE_SHARE * difference**2
        self._scatter = np.sqrt(variance)
        # The oldest look of the average, so that the beginning of a change does not enter the reference.
        needed = self._count_needed_looks()
        oldest = self._last_looks[-min(needed, len(self._last_looks))]
        share = REFERENCE_UPDATE_SHARE / needed
        self._reference = (1 - share) * self._reference + share * oldest

    def _count_needed_looks(self) -> int:
        """Number of looks whose mean shows a change of `MIN_CHANGE`."""
        return int(np.clip(np.ceil((SCATTER_SIGMAS * self._scatter.max() / MIN_CHANGE) ** 2), 1, MAX_LOOKS))

    def _learn_reference(self, look: Values) -> None:
        self._first_looks.append(look)
        if len(self._first_looks) >= REFERENCE_LOOK_COUNT:
            rows = np.array(self._first_looks)
            # The median, since an evaluation may be among the first looks.
            self._reference = np.median(rows, axis=0)
            self._scatter = 1.5 * np.median(np.abs(rows / self._reference - 1), axis=0)
            if self.expected_signature is not None and self._is_unexpected(self.expected_signature):
                # The job changed before the first look: its own looks are no reference.
                self._reference, self._scatter = self.expected_signature, np.zeros(3)

    def _is_unexpected(self, expected: Values) -> bool:
        """Whether use differs much from earlier readings; power is left out, as counter and sensor differ."""
        assert self._reference is not None
        return bool((np.abs(self._reference / expected - 1)[1:] > MAX_UNEXPECTED_USE).any())


@dataclass
class BeatMonitor:
    """Watches whether the beat of a job is lost."""

    _found_count: int = 0
    _looks: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=MAX_REMEMBERED))

    def add_look(self, at_s: float, found: bool | None) -> None:
        """Add the next look; `found`: whether it has the beat, None where unknown."""
        if found is not None:
            self._found_count += found
            self._looks.append((at_s, found))

    def is_lost(self, at_s: float) -> bool:
        """Whether most looks have missed the beat for `CONFIRM_S` / 2; chance finds it now and then."""
        recent = [(at, found) for at, found in self._looks if at_s - at <= UNSTABLE_S]
        missed = [at for at, found in recent if not found]
        is_long = len(missed) >= MIN_BEATS_FOUND and recent[-1][0] - missed[0] >= CONFIRM_S / 2
        is_majority = len(missed) > 2 * (len(recent) - len(missed))
        return self._found_count >= MIN_BEATS_FOUND and is_long and is_majority


def compute_signature(samples: SensorSamples) -> Values:
    """Signature of some samples."""
    return make_signature(
        finite_mean(samples.power_w), finite_mean(samples.sm_util), finite_mean(samples.memory_util)
    )


def make_signature(watts: float, sm_util: float, memory_util: float) -> Values:
    """Array of watts, SM use and memory use; each use plus 50 %, so that changes of a small one are small."""
    return np.array([watts, 50.0 + np.nan_to_num(sm_util), 50.0 + np.nan_to_num(memory_util)])


def has_work(samples: SensorSamples) -> bool:
    """Whether a kernel ran during the samples; true where SM use was not measured."""
    use = samples.sm_util[np.isfinite(samples.sm_util)]
    return not len(use) or bool(use.max() > 0)


def measure_longest_idle_s(samples: SensorSamples) -> float:
    """Longest stretch without a kernel in seconds."""
    is_idle = samples.sm_util <= 0
    if not is_idle.any():
        return 0.0
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_idle.astype(int), [0]])))
    lengths = edges[1::2] - edges[::2]
    interval_s = float(np.median(np.diff(samples.time_s))) if len(samples) > 1 else 0.1
    return float(lengths.max() * interval_s)
