"""Whether a job is still what it was: signatures of stretches against those right after the choice."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ekc.governor.samples import Samples, Values, mean

LEAST = 0.08
"""Least relative change that counts, of work with a beat; its own scatter may ask for more."""
SCATTER = 4.0
FOLLOW = 0.1
"""Share of a stretch that goes into the reference: slow drift is followed, and is no change."""
LARGE = 0.25
"""From here on a change is large: the counters are read again."""
CONFIRM_S = 75.0
"""A change must last so long: evaluations and checkpoints come and go."""
REFERENCES = 4


@dataclass
class Watch:
    """The reference, and how far a stretch is from it."""

    least: float = LEAST
    _seen: list[Values] = field(default_factory=list)
    _reference: Values | None = None
    _limit: float = LEAST

    def ready(self) -> bool:
        """Whether there is a reference."""
        return self._reference is not None

    def distance(self, samples: Samples) -> float:
        """How far off, as a share; 0 while the reference is being made."""
        if not np.isfinite(samples.power_w).any():
            return 0.0
        if self._reference is None:
            self._learn(signature(samples))
            return 0.0
        return float(np.abs(signature(samples) / self._reference - 1).max())

    def deviates(self, distance: float) -> bool:
        """Whether that is more than scatter."""
        return self.ready() and distance > self._limit

    def follow(self, samples: Samples) -> None:
        """A stretch that was as expected."""
        if self._reference is not None and np.isfinite(samples.power_w).any():
            self._reference = (1 - FOLLOW) * self._reference + FOLLOW * signature(samples)

    def _learn(self, seen: Values) -> None:
        self._seen.append(seen)
        if len(self._seen) >= REFERENCES:
            rows = np.array(self._seen)
            # The median: an evaluation may fall among the first.
            self._reference = np.median(rows, axis=0)
            scatter = 1.5 * np.median(np.abs(rows / self._reference - 1), axis=0)
            self._limit = max(self.least, SCATTER * float(scatter.max()))


def signature(samples: Samples) -> Values:
    """Watts, use of SMs and memory; utilisations lifted so that small ones do not weigh as relative
    changes."""
    return np.array(
        [
            mean(samples.power_w),
            50.0 + np.nan_to_num(mean(samples.sm_util)),
            50.0 + np.nan_to_num(mean(samples.memory_util)),
        ]
    )


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
