"""What measuring genomes promises, one by one and as a batch.

The best of a ranking look alike: a pad more, another width. To measure one of them tells most of what the
others would. So a batch is picked one by one, each genome as though those picked before it had come out as
expected: what they tell of it is no longer to be learned, and the best of them is what it must improve on
(the Kriging believer of Ginsbourger, Le Riche and Carraro, 2010).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.search.cost_model.surrogate import log_expected_improvement

Array = NDArray[np.float64]

_MIN_VARIANCE_SHARE = 1e-6
"""Of a variance, below which its digits are lost."""
_MAX_UNREACHABLE_SHARE = 1.0 - 1e-9
"""Of what is promised, where nothing of it can be had: still in the order of what is promised."""


@dataclass(frozen=True, eq=False)
class Acquisition:
    """Figures believed, as normal laws of their logs, and the log of the figure that is to be beaten."""

    mean: Array
    std: Array
    """Of what the next measurement settles."""
    best: float
    unobserved_std: Array | float = 0.0
    """Spread of what it does not: the power of a kernel that is only timed."""
    lower_bound: Array | float = -np.inf
    """Log of what a figure cannot be less than, whatever is believed."""
    log_feasibility: Array | float = 0.0
    """Log of how likely it is that figures come by this law at all: those of kernels that spill do not."""

    def score(self, variance_share: Array | float = 1.0, best: float | None = None) -> Array:
        """Minus the log of the expected improvement, lower is more urgent, where a share `left` of the
        variance is still to be settled, on another `best` if one is given."""
        spread = np.hypot(self.std * np.sqrt(variance_share), self.unobserved_std)
        best = self.best if best is None else best
        gain = log_expected_improvement(self.mean, spread, best)
        if isinstance(self.lower_bound, float):
            return -(gain + self.log_feasibility)
        # What is promised from the floor on downwards nobody will get.
        beyond = log_expected_improvement(self.mean, spread, np.minimum(self.lower_bound, best)) - gain
        return -(gain + np.log1p(-np.minimum(np.exp(beyond), _MAX_UNREACHABLE_SHARE)) + self.log_feasibility)

    def __getitem__(self, rows: NDArray[np.intp]) -> Acquisition:
        own = (
            x if isinstance(x, float) else x[rows]
            for x in (self.unobserved_std, self.lower_bound, self.log_feasibility)
        )
        return Acquisition(self.mean[rows], self.std[rows], self.best, *own)

    def pick_batch(self, count: int, correlation: Array) -> list[int]:
        """Up to `count` rows, in the order they were picked.

        correlation[n + m, n + m]: of what measurements will say and nobody knows yet; the last m rows are in
        the batch already. What is left of the others with each pick is the conditional variance of a
        normal law.
        """
        rows, best = len(self.mean), self.best
        left, chosen = correlation.copy(), list[int]()
        for given in range(rows, len(left)):
            _condition_on(left, given)
        for _ in range(min(count, rows)):
            urgency = self.score(np.clip(np.diagonal(left)[:rows], _MIN_VARIANCE_SHARE, 1.0), best)
            urgency[chosen] = np.inf
            chosen.append(int(np.argmin(urgency)))
            best = min(best, float(self.mean[chosen[-1]]))
            _condition_on(left, chosen[-1])
        return chosen


def _condition_on(covariance: Array, row: int) -> None:
    """Take out what a row tells of the others."""
    covariance -= np.outer(covariance[:, row], covariance[row]) / max(
        covariance[row, row], _MIN_VARIANCE_SHARE
    )
