"""What is said of a period."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["periodic", "multiple", "aperiodic", "too_short"]


@dataclass(frozen=True)
class Period:
    """The period of a signal, or why none is told."""

    seconds: float
    """Mean period. With another verdict than `periodic` the best guess, good as the length of a window;
    NaN where there is none."""
    error: float
    """How unlike adjacent periods are: 0 where one repeats the other, 1 where they have nothing in common."""
    verdict: Verdict
    """`periodic`: an iteration takes `seconds`. `multiple`: a whole number of iterations does, of which the
    sensor is too slow to show one. `aperiodic`: nothing repeats. `too_short`: not enough was seen to tell."""
