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
from ekc.search.choice import TIE, margin
from ekc.search.objective import merit
from ekc.search.options import Wish

Array = NDArray[np.float64]

TOO_SLOW = 2
"""Power of how much slower than allowed a kernel is, by which its objective counts as larger."""


@dataclass(frozen=True, eq=False)
class Standing:
    """Of candidates that have a latency. Worked out once for each ranking."""

    wish: Wish
    working: Sequence[Candidate]

    @cached_property
    def latencies_s(self) -> Array:
        """Of every one."""
        return np.array([c.latency_s for c in self.working])

    @cached_property
    def scores(self) -> Array:
        """Of every one, by the energy metered or else believed. To go by the metered alone would leave a run
        that meters few with a mark of its first round, and all it breeds would seem to beat that by far."""
        return self.score(self.latencies_s, np.array([c.power_w for c in self.working]))

    @property
    def best(self) -> Candidate:
        """The one of the least score."""
        return self.working[int(np.argmin(self.scores))]

    @property
    def margin(self) -> float:
        """How much more than the best score may be as good, as a share of it."""
        alone = self.wish.objective == "latency"
        return margin(self.best.latency_interval_s) if alone else TIE

    def score(self, latency_s: Any, watts: Any) -> Array:
        """The objective, and dearer by `TOO_SLOW` for what is too slow to win."""
        asked = merit(self.wish.objective, latency_s, latency_s * watts)
        return np.asarray(asked * np.maximum(latency_s / self.limit_s, 1.0) ** TOO_SLOW)

    @cached_property
    def limit_s(self) -> float:
        """Seconds that a winner may take."""
        return (1 + self.wish.max_slowdown) * float(self.latencies_s.min(initial=math.inf))
