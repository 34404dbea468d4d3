"""Whether a job is still what it was: signatures of looks against those before, and its beat."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil

import numpy as np

from ekc.governor.samples import Samples, Values, mean

LEAST = 0.08
"""Least relative change that is one, of work with a beat; its own scatter may ask for more."""
SMALL = 0.03
"""Least that is worth a measurement of the default."""
SCATTER = 4.0
FOLLOW = 0.5
"""Share of a look that goes into the reference: slow drift is followed, and is no change."""
STRAY, LEAST_STRAY = 2.0, 0.01
"""Times the scatter, or at least so much, that one look may teach of it."""
LEARN = 0.1
"""Share of a look that goes into what is known of scatter."""
LARGE = 0.25
"""From here on a change is large: the counters are read again."""
CONFIRM_S = 75.0
"""A change must last so long: evaluations and checkpoints come and go."""
RESTLESS_S = 2 * CONFIRM_S
"""Where some looks are as they were."""
MOST_REMEMBERED = 64
REFERENCES = 4
UNEXPECTED = 0.15
"""No gear or two makes such a difference in use."""
MOST_LOOKS = 6
"""So many looks are put together where one alone scatters too much to tell a change."""
KEPT = 3
"""A beat that was found so often is missed when it is gone."""


@dataclass
class Watch:
    """The reference, and how far the last looks are from it."""

    look_s: float
    expected: Values | None = None
    """What readings under these limits, or nearly these, were like (a signature)."""
    _first: list[Values] = field(default_factory=list)
    _reference: Values | None = None
    _scatter: Values = field(default_factory=lambda: np.zeros(3))
    _last: deque[Values] = field(default_factory=lambda: deque(maxlen=MOST_LOOKS))
    _off: deque[bool] = field(default_factory=lambda: deque(maxlen=MOST_REMEMBERED))

    def ready(self) -> bool:
        """Whether there is a reference."""
        return self._reference is not None

    def distance(self, samples: Samples) -> float:
        """How far off, as a share, beyond what scatter explains; 0 where it explains all, and while the
        reference is being made. Looks come one after the other."""
        if not np.isfinite(samples.power_w).any():
            return 0.0
        look = signature(samples)
        if self._reference is None:
            self._learn(look)
            return 0.0
        self._last.append(look)
        together = np.array(self._last)[-self._looks() :]
        off = np.abs(together.mean(axis=0) / self._reference - 1)
        told = off > SCATTER * self._scatter / np.sqrt(len(together))
        distance = float(off[told].max(initial=0.0))
        self._off.append(self.deviates(distance))
        return distance

    def deviates(self, distance: float) -> bool:
        """Whether that is worth a closer look."""
        return self.ready() and distance > SMALL

    def restless(self) -> bool:
        """Whether most looks are off for longer than anything that comes and goes, be it that no change
        lasts: iterations that are longer than a look show so."""
        enough = ceil(RESTLESS_S / self.look_s)
        lately = list(self._off)[-enough:]
        return len(lately) == enough and sum(lately) > enough / 2

    def follow(self) -> None:
        """The last look was as expected."""
        if self._reference is None or not self._last:
            return
        off = np.abs(self._last[-1] / self._reference - 1)
        # The first look of a change is as expected as far as one look can tell: it must not pass for scatter.
        off = np.minimum(off, np.maximum(STRAY * self._scatter, LEAST_STRAY))
        self._scatter = np.sqrt((1 - LEARN) * self._scatter**2 + LEARN * off**2)
        # What a change began with must not be in what it is held against.
        oldest = self._last[-self._looks()] if len(self._last) >= self._looks() else self._last[0]
        share = FOLLOW / self._looks()
        self._reference = (1 - share) * self._reference + share * oldest

    def _looks(self) -> int:
        """How many together tell a change of `LEAST`."""
        return int(np.clip(np.ceil((SCATTER * self._scatter.max() / LEAST) ** 2), 1, MOST_LOOKS))

    def _learn(self, look: Values) -> None:
        self._first.append(look)
        if len(self._first) >= REFERENCES:
            rows = np.array(self._first)
            # The median: an evaluation may fall among the first.
            self._reference = np.median(rows, axis=0)
            self._scatter = 1.5 * np.median(np.abs(rows / self._reference - 1), axis=0)
            if self.expected is not None and self._unexpected(self.expected):
                # The job changed just then: held against itself it would look as ever.
                self._reference, self._scatter = self.expected, np.zeros(3)

    def _unexpected(self, expected: Values) -> bool:
        """Whether use is far from what was read; watts of a counter and of a sensor may differ by more."""
        assert self._reference is not None
        return bool((np.abs(self._reference / expected - 1)[1:] > UNEXPECTED).any())


@dataclass
class Pulse:
    """Whether the beat of a job is still there."""

    _found: int = 0
    _looks: deque[tuple[float, bool]] = field(default_factory=lambda: deque(maxlen=MOST_REMEMBERED))

    def look(self, at_s: float, found: bool | None) -> None:
        """The next look; `found` is None where it cannot tell."""
        if found is not None:
            self._found += found
            self._looks.append((at_s, found))

    def gone(self, at_s: float) -> bool:
        """Whether most looks have missed it for long: chance finds it now and then."""
        lately = [(at, found) for at, found in self._looks if at_s - at <= RESTLESS_S]
        missed = [at for at, found in lately if not found]
        enough = len(missed) >= KEPT and lately[-1][0] - missed[0] >= CONFIRM_S / 2
        return self._found >= KEPT and enough and len(missed) > 2 * (len(lately) - len(missed))


def signature(samples: Samples) -> Values:
    """Watts, use of SMs and memory; utilisations lifted so that small ones do not weigh as relative
    changes."""
    return lifted(mean(samples.power_w), mean(samples.sm_util), mean(samples.memory_util))


def lifted(watts: float, sm_util: float, memory_util: float) -> Values:
    """The same of means."""
    return np.array([watts, 50.0 + np.nan_to_num(sm_util), 50.0 + np.nan_to_num(memory_util)])


def working(samples: Samples) -> bool:
    """Whether a kernel ran; where the card does not tell, one did."""
    known = samples.sm_util[np.isfinite(samples.sm_util)]
    return not len(known) or bool(known.max() > 0)


def longest_idle_s(samples: Samples) -> float:
    """The longest stretch without a kernel."""
    quiet = samples.sm_util <= 0
    if not quiet.any():
        return 0.0
    edges = np.flatnonzero(np.diff(np.concatenate([[0], quiet.astype(int), [0]])))
    lengths = edges[1::2] - edges[::2]
    gap = float(np.median(np.diff(samples.time_s))) if len(samples) > 1 else 0.1
    return float(lengths.max() * gap)
