"""How fast a job goes, from the best source there is: its steps, its period, or the memory it moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from ekc.governor.period import Found, detect_period
from ekc.governor.reading import UNTOLD, Pace
from ekc.governor.samples import Samples, mean
from ekc.governor.tempo import tempo

Source = Literal["steps", "period", "throughput", "none"]
CLEAR = 0.25
"""Least share of the signals' variance that a period must explain to be trusted as progress."""
LEAST_MEMORY = 3.0
"""Percent of memory use below which rounding hides progress."""
BLOCK_S = 2.5
FLOOR = 0.002
"""No pace is known better than this share."""
FEWEST_BLOCKS = 2
"""How far they stray is pooled over the phase, so two teach something."""
POLL_S = 0.2
"""How often the count of steps is looked at."""
FEWEST_STEPS = 3
STEP_BLOCKS = 8
JITTER = 0.015
"""Of one period to the next, one sigma, believed until seen."""


@dataclass(frozen=True)
class Straying:
    """Variance that a witness gains per second, the mean of all stretches that were seen.

    One stretch alone tells its own error badly: its few blocks may agree by chance, and what looks surest
    would then weigh most.
    """

    per_s: float = 0.0
    seen: int = 0

    def after(self, per_s: float) -> Straying:
        """With one more stretch; one that tells nothing (NaN) changes nothing."""
        if not per_s >= 0:
            return self
        return Straying((self.per_s * self.seen + per_s) / (self.seen + 1), self.seen + 1)

    def error(self, seconds: float) -> float:
        """Standard error of a mean over so long; of timing, in the unit of `per_s` over seconds."""
        return float(np.sqrt(self.per_s / seconds))


@dataclass(frozen=True)
class Beat:
    """What tells progress, settled at the default limits."""

    source: Source
    period_s: float = float("nan")
    """At the default limits, where the source is a period."""
    verdict: str = "aperiodic"
    wander: Straying = Straying()
    """How the beat strays (`Tempo.wander`)."""
    uneven: Straying = Straying()
    """The same of the bytes that are moved."""
    draw: Straying = Straying()
    """The same of the watts that are drawn."""

    def window_s(self) -> float:
        """How long a reading must be, at least."""
        if self.source == "steps":
            return float(np.clip(6.0 + 3.2 * self.period_s, 12.0, 60.0))
        if self.source == "period":
            return max(10.0, min(3.2 * self.period_s, 6.0 + 2.2 * self.period_s))
        return 20.0 if self.source == "throughput" else 12.0


def stepping(samples: Samples, steps: float) -> Beat:
    """Of a job whose hooks counted so many steps in a stretch at the default limits."""
    each = float(samples.time_s[-1] - samples.time_s[0]) / max(steps, 0.5)
    return Beat("steps", each, detect_period(samples, samples.sampling_hz).verdict)


def beat_of(found: Found) -> Beat:
    """The source of progress of a job without hooks, recorded at the default limits."""
    period, samples = found.period, found.samples
    if period.verdict in ("periodic", "multiple"):
        seen = tempo(samples, period.seconds, 0.9, 1.1)
        if seen is not None and seen.clarity >= CLEAR:
            usual = Straying(JITTER**2 * seen.seconds, 1)
            return Beat("period", seen.seconds, period.verdict, usual)
    moving = mean(samples.memory_util)
    return Beat("throughput" if moving >= LEAST_MEMORY else "none", verdict=period.verdict)


@dataclass(frozen=True)
class Steps:
    """A moment at which the count of the hooks was seen to have moved, and the count."""

    at_s: float
    count: float


def pace_of(
    beat: Beat, samples: Samples, most_stretch: float, steps: Sequence[Steps] = ()
) -> tuple[Pace, Beat]:
    """Progress per second over a stretch, and the beat with what that taught of its errors.

    `most_stretch`: how much longer than at the default an iteration can be at most.
    """
    told, beat = _beats(beat, samples, most_stretch, steps)
    # Blocks of whole iterations as they are now: parts of one, as those of the default's length, tell other
    # work.
    period = told.period_s if told.period_s > 0 else beat.period_s
    moved, uneven = _moved(samples, period)
    beat = replace(beat, uneven=beat.uneven.after(uneven), draw=beat.draw.after(_drawn(samples, period)))
    if not np.isfinite(moved):
        return told, beat
    lasted = float(samples.time_s[-1] - samples.time_s[0])
    return replace(told, moved=moved, moved_error=max(2 * FLOOR, beat.uneven.error(lasted))), beat


def _beats(beat: Beat, samples: Samples, most_stretch: float, steps: Sequence[Steps]) -> tuple[Pace, Beat]:
    """What beats tell alone."""
    if beat.source == "steps":
        return _stepped(beat, steps)
    if beat.source != "period":
        return Pace(), beat
    found = tempo(samples, beat.period_s, 0.95, 1.05 * most_stretch)
    if found is None or found.clarity < CLEAR / 2:
        return Pace(), beat
    beat = replace(beat, wander=beat.wander.after(found.wander))
    error = max(FLOOR, beat.wander.error(float(samples.time_s[-1] - samples.time_s[0])))
    return Pace(beats=1 / found.seconds, beats_error=error, period_s=found.seconds), beat


def _stepped(beat: Beat, steps: Sequence[Steps]) -> tuple[Pace, Beat]:
    """From the first step that was seen to end to the last one."""
    if len(steps) < FEWEST_STEPS:
        return Pace(), beat
    seconds, done = steps[-1].at_s - steps[0].at_s, steps[-1].count - steps[0].count
    late = POLL_S**2 / 12
    blocks = steps[:: max(1, len(steps) // STEP_BLOCKS)]
    lasted = np.array([b.at_s - a.at_s for a, b in pairwise(blocks)])
    usual = np.array([b.count - a.count for a, b in pairwise(blocks)]) * seconds / done
    # Polls see a step end up to one poll late, which is no straying of the step.
    strayed = float(((lasted - usual) ** 2).sum() / max(1, len(lasted) - 1)) - 2 * late
    beat = replace(beat, wander=beat.wander.after(max(0.0, strayed) / float(lasted.mean())))
    error = float(np.hypot(beat.wander.error(seconds), np.sqrt(2 * late) / seconds))
    return Pace(beats=done / seconds, beats_error=max(FLOOR, error), period_s=seconds / done), beat


def _moved(samples: Samples, period_s: float) -> tuple[float, float]:
    """Memory use per busy second, and how that strays, as a share: from blocks, of whole periods if there
    are."""
    length, spans = _blocks(samples, period_s)
    moving = np.array([mean(samples.memory_util[span]) for span in spans])
    busy = np.array([mean(samples.sm_util[span]) for span in spans]) / 100
    if len(spans) < FEWEST_BLOCKS or not mean(moving) >= LEAST_MEMORY or not mean(busy) > 0:
        return UNTOLD, UNTOLD
    rate = float(np.nansum(moving) / np.nansum(busy))
    # A ratio of sums: what a block moves beyond what it should for the time it was busy.
    off = moving - rate * busy
    return rate, float(np.nansum(off**2) / (len(off) - 1)) / mean(moving) ** 2 * length


def _drawn(samples: Samples, period_s: float) -> float:
    """How watts stray, as a share: variance of the mean of blocks, times their length."""
    length, spans = _blocks(samples, period_s)
    watts = np.array([mean(samples.power_w[span]) for span in spans])
    watts = watts[np.isfinite(watts)]
    if len(watts) < FEWEST_BLOCKS or not watts.mean() > 0:
        return UNTOLD
    return float(np.var(watts, ddof=1)) / float(watts.mean()) ** 2 * length


def _blocks(samples: Samples, period_s: float) -> tuple[float, list[slice]]:
    """Seconds of a block, and where blocks lie: of whole periods if there are."""
    length = BLOCK_S if not period_s > 0 else period_s * max(1.0, np.ceil(BLOCK_S / period_s))
    edges = np.searchsorted(samples.time_s, np.arange(samples.time_s[0], samples.time_s[-1] + 1e-9, length))
    return length, [slice(a, b) for a, b in pairwise(edges) if b - a > 1]
