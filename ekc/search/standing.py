"""How a run stands: what it has found so far, as its objective sees it, and so what is to be beaten."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.search.candidate import Candidate
from ekc.search.choice import TIE_TOLERANCE, compute_tie_margin
from ekc.search.objective import compute_objective
from ekc.search.options import TuneOptions

Array = NDArray[np.float64]

INFEASIBILITY_EXPONENT = 2
"""Power of how much slower than allowed a kernel is, by which its objective counts as larger."""


@dataclass(frozen=True, eq=False)
class Incumbent:
    """Of candidates that have a latency. Worked out once for each ranking."""

    options: TuneOptions
    candidates: Sequence[Candidate]

    @cached_property
    def latencies_s(self) -> Array:
        """Of every one."""
        return np.array([c.latency_s for c in self.candidates])

    @cached_property
    def scores(self) -> Array:
        """Of every one, by the energy metered or else believed. To go by the metered alone would leave a run
        that meters few with a mark of its first round, and all it breeds would seem to beat that by far."""
        return self.score(self.latencies_s, np.array([c.power_w for c in self.candidates]))

    @property
    def best(self) -> Candidate:
        """The one of the least score."""
        return self.candidates[int(np.argmin(self.scores))]

    @property
    def tie_margin(self) -> float:
        """How much more than the best score may be as good, as a share of it."""
        alone = self.options.objective == "latency"
        return compute_tie_margin(self.best.latency_interval_s) if alone else TIE_TOLERANCE

    def score(self, latency_s: Any, power_w: Any) -> Array:
        """The objective, and dearer by `TOO_SLOW` for what is too slow to win."""
        asked = compute_objective(self.options.objective, latency_s, latency_s * power_w)
        return np.asarray(asked * np.maximum(latency_s / self.max_latency_s, 1.0) ** INFEASIBILITY_EXPONENT)

    @cached_property
    def max_latency_s(self) -> float:
        """Seconds that a winner may take."""
        return (1 + self.options.max_slowdown) * float(self.latencies_s.min(initial=math.inf))
