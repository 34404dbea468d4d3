"""Whether a job is still what it was: signatures of looks against those before, and its beat."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from ekc.governor.samples import SensorSamples, Values, finite_mean

MIN_CHANGE = 0.08
"""Least relative change that is one, of work with a beat; its own scatter may ask for more."""
MIN_DEVIATION = 0.03
"""Least that is worth a measurement of the default."""
SCATTER_SIGMAS = 4.0
REFERENCE_UPDATE_SHARE = 0.5
"""Share of a look that goes into the reference: slow drift is followed, and is no change."""
SCATTER_CLIP, MIN_SCATTER_CLIP = 2.0, 0.01
"""Times the scatter, or at least so much, that one look may teach of it."""
SCATTER_UPDATE_SHARE = 0.1
"""Share of a look that goes into what is known of scatter."""
LARGE_CHANGE = 0.25
"""From here on a change is large: the counters are read again."""
CONFIRM_S = 75.0
"""A change must last so long: evaluations and checkpoints come and go."""
UNSTABLE_S = 2 * CONFIRM_S
"""Where some looks are as they were."""
MAX_REMEMBERED = 64
REFERENCE_LOOK_COUNT = 4
MAX_UNEXPECTED_USE = 0.15
"""No gear or two makes such a difference in use."""
MAX_LOOKS = 6
"""So many looks are put together where one alone scatters too much to tell a change."""
MIN_BEATS_FOUND = 3
"""A beat that was found so often is missed when it is gone."""


@dataclass
class ChangeDetector:
    """The reference, and how far the last looks are from it."""

    look_s: float
    expected_signature: Values | None = None
    """What readings under these limits, or nearly these, were like (a signature)."""
    _first_looks: list[Values] = field(default_factory=list)
    _reference: Values | None = None
    _scatter: Values = field(default_factory=lambda: np.zeros(3))
    _last_looks: deque[Values] = field(default_factory=lambda: deque(maxlen=MAX_LOOKS))
    _deviated_flags: deque[bool] = field(default_factory=lambda: deque(maxlen=MAX_REMEMBERED))

    def is_ready(self) -> bool:
        """Whether there is a reference."""
        return self._reference is not None

    def measure_distance(self, samples: SensorSamples) -> float:
        """How far off, as a share, beyond what scatter explains; 0 where it explains all, and while the
        reference is being made. Looks come one after the other."""
        if not np.isfinite(samples.power_w).any():
            return 0.0
        look = compute_signature(samples)
        if self._reference is None:
            self._learn_reference(look)
            return 0.0
        self._last_looks.append(look)
        together = np.array(self._last_looks)[-self._count_needed_looks() :]
        off = np.abs(together.mean(axis=0) / self._reference - 1)
        told = off > SCATTER_SIGMAS * self._scatter / np.sqrt(len(together))
        distance = float(off[told].max(initial=0.0))
        self._deviated_flags.append(self.is_deviating(distance))
        return distance

    def is_deviating(self, distance: float) -> bool:
        """Whether that is worth a closer look."""
        return self.is_ready() and distance > MIN_DEVIATION

    def is_unstable(self) -> bool:
        """Whether most looks are off for longer than anything that comes and goes, be it that no change
        lasts: iterations that are longer than a look show so."""
        enough = ceil(UNSTABLE_S / self.look_s)
        lately = list(self._deviated_flags)[-enough:]
        return len(lately) == enough and sum(lately) > enough / 2

    def update_reference(self) -> None:
        """The last look was as expected."""
        if self._reference is None or not self._last_looks:
            return
        off = np.abs(self._last_looks[-1] / self._reference - 1)
        # The first look of a change is as expected as far as one look can tell: it must not pass for scatter.
        off = np.minimum(off, np.maximum(SCATTER_CLIP * self._scatter, MIN_SCATTER_CLIP))
        self._scatter = np.sqrt((1 - SCATTER_UPDATE_SHARE) * self._scatter**2 + SCATTER_UPDATE_SHARE * off**2)
        # What a change began with must not be in what it is held against.
        oldest = (
            self._last_looks[-self._count_needed_looks()]
            if len(self._last_looks) >= self._count_needed_looks()
            else self._last_looks[0]
        )
        share = REFERENCE_UPDATE_SHARE / self._count_needed_looks()
        self._reference = (1 - share) * self._reference + share * oldest

    def _count_needed_looks(self) -> int:
        """How many together tell a change of `LEAST`."""
        return int(np.clip(np.ceil((SCATTER_SIGMAS * self._scatter.max() / MIN_CHANGE) ** 2), 1, MAX_LOOKS))

    def _learn_reference(self, look: Values) -> None:
        self._first_looks.append(look)
        if len(self._first_looks) >= REFERENCE_LOOK_COUNT:
            rows = np.array(self._first_looks)
            # The median: an evaluation may fall among the first.
            self._reference = np.median(rows, axis=0)
            self._scatter = 1.5 * np.median(np.abs(rows / self._reference - 1), axis=0)
            if self.expected_signature is not None and self._is_unexpected(self.expected_signature):
                # The job changed just then: held against itself it would look as ever.
                self._reference, self._scatter = self.expected_signature, np.zeros(3)

    def _is_unexpected(self, expected: Values) -> bool:
        """Whether use is far from what was read; watts of a counter and of a sensor may differ by more."""
        assert self._reference is not None
        return bool((np.abs(self._reference / expected - 1)[1:] > MAX_UNEXPECTED_USE).any())


@dataclass
class BeatMonitor:
    """Whether the beat of a job is still there."""

    _found_count: int = 0
    _looks: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=MAX_REMEMBERED))

    def add_look(self, at_s: float, found: bool | None) -> None:
        """The next look; `found` is None where it cannot tell."""
        if found is not None:
            self._found_count += found
            self._looks.append((at_s, found))

    def is_lost(self, at_s: float) -> bool:
        """Whether most looks have missed it for long: chance finds it now and then."""
        lately = [(at, found) for at, found in self._looks if at_s - at <= UNSTABLE_S]
        missed = [at for at, found in lately if not found]
        enough = len(missed) >= MIN_BEATS_FOUND and lately[-1][0] - missed[0] >= CONFIRM_S / 2
        return (
            self._found_count >= MIN_BEATS_FOUND and enough and len(missed) > 2 * (len(lately) - len(missed))
        )


def compute_signature(samples: SensorSamples) -> Values:
    """Watts, use of SMs and memory; utilisations lifted so that small ones do not weigh as relative
    changes."""
    return make_signature(
        finite_mean(samples.power_w), finite_mean(samples.sm_util), finite_mean(samples.memory_util)
    )


def make_signature(watts: float, sm_util: float, memory_util: float) -> Values:
    """The same of means."""
    return np.array([watts, 50.0 + np.nan_to_num(sm_util), 50.0 + np.nan_to_num(memory_util)])


def has_work(samples: SensorSamples) -> bool:
    """Whether a kernel ran; where the card does not tell, one did."""
    known = samples.sm_util[np.isfinite(samples.sm_util)]
    return not len(known) or bool(known.max() > 0)


def measure_longest_idle_s(samples: SensorSamples) -> float:
    """The longest stretch without a kernel."""
    quiet = samples.sm_util <= 0
    if not quiet.any():
        return 0.0
    edges = np.flatnonzero(np.diff(np.concatenate([[0], quiet.astype(int), [0]])))
    lengths = edges[1::2] - edges[::2]
    gap = float(np.median(np.diff(samples.time_s))) if len(samples) > 1 else 0.1
    return float(lengths.max() * gap)
