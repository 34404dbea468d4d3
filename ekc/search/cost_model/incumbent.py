"""The incumbent of a run: the best schedule so far, and the objective that others must improve on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import SELECTION
from ekc.search.data.options import TuneOptions, compute_objective
from ekc.search.data.selection import compute_tie_margin

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Incumbent:
    """Objective values of all timed candidates, and the best of them."""

    options: TuneOptions
    candidates: Sequence[Candidate]
    """Candidates with a latency."""

    @cached_property
    def latencies_s(self) -> Array:
        """Latency of each candidate."""
        return np.array([c.latency_s for c in self.candidates])

    @cached_property
    def scores(self) -> Array:
        """Objective of each candidate, with the metered power or else the predicted power. With the metered
        candidates alone, a run that meters few would compare with the best of its first round, and every new
        genome would seem a large improvement."""
        return self.score(self.latencies_s, np.array([c.power_w for c in self.candidates]))

    @property
    def best(self) -> Candidate:
        """The candidate of the least objective."""
        return self.candidates[int(np.argmin(self.scores))]

    @property
    def tie_margin(self) -> float:
        """Relative difference up to which another objective is tied with the best."""
        if self.options.objective != "latency":
            return SELECTION.tie_tolerance
        return compute_tie_margin(self.best.latency_interval_s)

    def score(self, latency_s: Any, power_w: Any) -> Array:
        """Compute the objective, with a penalty on latencies above `max_latency_s`."""
        value = compute_objective(self.options.objective, latency_s, latency_s * power_w)
        excess = np.maximum(latency_s / self.max_latency_s, 1.0)
        return np.asarray(value * excess**SELECTION.infeasibility_exponent)

    @cached_property
    def max_latency_s(self) -> float:
        """Latency of the fastest candidate, plus the allowed slowdown; infinity without candidates."""
        return (1 + self.options.max_slowdown) * float(self.latencies_s.min(initial=math.inf))
