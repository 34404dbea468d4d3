"""A period measured on a running job: recorded until it is stable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ekc.governor.period.detect import CYCLES, detect_period
from ekc.governor.period.verdict import Period
from ekc.governor.samples import Samples, joined

FIRST_S = 15.0
"""Recorded before anything is said (GPOEO: 25)."""
ENOUGH = 5.3
"""Periods that are wanted, and at most so many seconds more at once (GPOEO)."""
LEAST_MORE_S, MOST_MORE_S = 5.0, 30.0
LONGEST_S = 20.0
"""Periods up to this are looked for."""
PARTS = (0.75, 0.5)
"""Of the recording, the last: a stable period is found there too."""
STRICT, NORMAL, RELAXED = 0.10, 0.15, 0.30
"""Largest spread of a stable period, as a share (GPOEO)."""


class Recorder(Protocol):
    """What is asked of a probe, or of whatever watches through one."""

    def record(self, seconds: float) -> Samples:
        """Wait that long and return what was sampled."""
        ...

    def running(self) -> bool:
        """Whether the job is still there."""
        ...


@dataclass(frozen=True)
class Found:
    """What a recording told."""

    period: Period
    spread: float
    """What the period differs by between parts of the recording, as a share; NaN where there is none."""
    stable: bool
    """Whether it is found in all parts, and differs little. If not, it is good as a window only."""
    samples: Samples
    """The whole recording."""


def find_period(probe: Recorder, spread: float = NORMAL) -> Found:
    """Record until the period is stable, or nothing repeats in three times `LONGEST_S`, or the job ends.

    `spread`: what is still stable.
    """
    samples = probe.record(FIRST_S)
    while True:
        found = judged(samples, spread)
        missing_s = _missing(found)
        if missing_s <= 0.0 or not probe.running():
            return found
        # Twice as long is often enough.
        more_s = float(np.clip(missing_s, LEAST_MORE_S, min(MOST_MORE_S, max(FIRST_S, _span(samples)))))
        samples = joined(samples, probe.record(more_s))


def judged(samples: Samples, spread: float = NORMAL) -> Found:
    """What a recording tells, and whether its last parts tell the same."""
    hz = samples.sampling_hz
    period = detect_period(samples, hz)
    if period.verdict not in ("periodic", "multiple"):
        return Found(period, float("nan"), False, samples)
    parts = [detect_period(part, hz) for part in _parts(samples, CYCLES * period.seconds)]
    seconds = [period.seconds, *(part.seconds for part in parts)]
    apart = (max(seconds) - min(seconds)) / period.seconds
    same = all(part.verdict == period.verdict for part in parts) and bool(parts)
    return Found(period, apart, same and apart < spread, samples)


def _parts(samples: Samples, least_s: float) -> list[Samples]:
    """The last parts of a recording that are not too short."""
    span = _span(samples)
    return [samples.since(samples.time_s[-1] - part * span) for part in PARTS if part * span > least_s]


def _missing(found: Found) -> float:
    """Seconds that are still to be recorded: 0 where more would not help."""
    span, period = _span(found.samples), found.period
    if found.stable:
        return 0.0
    if period.verdict in ("periodic", "multiple"):
        # What its parts do not share may be chance: the most is recorded before it is given up.
        wanted = ENOUGH * period.seconds if span < ENOUGH * period.seconds else CYCLES * LONGEST_S
    else:
        wanted = CYCLES * LONGEST_S
    return wanted - span


def _span(samples: Samples) -> float:
    return float(samples.time_s[-1] - samples.time_s[0]) if len(samples) else 0.0
