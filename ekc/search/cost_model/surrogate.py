"""What is believed of a figure before it is measured: a value, and how sure.

Boosted trees and a Gaussian process learn the log of figure over prior. Their mean is the expectation; the
process's own doubt and the distance between the two are the spread, scaled by how right such spreads have
been for what is alike. `improvement` turns both into what a measurement promises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.search.cost_model.gaussian_process import GaussianProcess, get_prediction_pool
from ekc.search.cost_model.xgboost_model import MIN_ROWS, ResidualModel

Array = NDArray[np.float64]

PRIOR_STD = 0.5
"""Spread of the log of a figure while there is only a prior."""
RESIDUAL_CLIP = math.log(4)
"""What is more than this above the median residual is merely bad: how bad teaches little of the good, and
would make the process unsure of everything."""
MAX_SQUARED_Z_SCORE = 25.0
"""A squared surprise, in spreads, that no surprise counts more than: one must not speak for all around it."""
_TAIL_Z_SCORE = -6.0
"""Below this many spreads the exact formula of the improvement loses its digits."""
_ERFC = np.frompyfunc(math.erfc, 1, 1)
_TAIL_PROBABILITY = 0.5 * math.erfc(-_TAIL_Z_SCORE / math.sqrt(2))


@dataclass
class Surrogate:
    """The belief in one figure (a latency, an energy), lower being better."""

    seed: int
    tree_share: float = 0.5
    """Weight of the trees in the mean; the process has the rest."""
    residual_clip: float = RESIDUAL_CLIP
    """How far above the median residual and the best figure, whichever is more, one is learned as it is. A
    search, which asks of the good alone, wants little."""
    trees: ResidualModel = field(init=False)
    gaussian_process: GaussianProcess = field(default_factory=GaussianProcess)
    _rows: list[NDArray[np.float32]] = field(default_factory=list)
    _priors: list[float] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)
    _objective_values: list[float] = field(default_factory=list)
    _squared_z_scores: list[float] = field(default_factory=list)
    """Squares of the distances between what was expected and what was measured, in spreads; NaN where nothing
    was."""

    def __post_init__(self) -> None:
        self.trees = ResidualModel(self.seed)

    @property
    def is_ready(self) -> bool:
        """Whether enough was measured to believe more than the prior."""
        return len(self._values) >= MIN_ROWS and bool(np.isfinite(self._values).any())

    def learn(
        self, rows: NDArray[np.float32], priors: Array, values: Array, objective_values: Array | None = None
    ) -> None:
        """Measured figures, NaN for what failed: it counts as the worst figure seen. The trees care most for
        rows of little `merits`, by default the figure itself."""
        foretold = self._predict_uncalibrated(rows, priors)[:2] if self.is_ready else None
        self._squared_z_scores.extend([math.nan] * len(rows))
        self._rows.extend(rows)
        self._priors.extend(priors.tolist())
        self._values.extend(values.tolist())
        self._objective_values.extend((values if objective_values is None else objective_values).tolist())
        if not self.is_ready:
            return
        seen, merit = _replace_failures(self._values), _replace_failures(self._objective_values)
        priors = np.array(self._priors)
        residuals = _clip_residuals(priors, seen, self.residual_clip)
        seen = priors * np.exp(residuals)
        if foretold is not None:
            self._squared_z_scores[-len(rows) :] = _compute_squared_z_scores(
                *foretold, np.log(seen[-len(rows) :]), values
            )
        self.trees = ResidualModel(self.seed)
        for row, *figures in zip(self._rows, self._priors, seen.tolist(), merit.tolist(), strict=True):
            self.trees.add_row(row, *figures)
        self.trees.fit()
        self.gaussian_process.fit(
            np.stack(self._rows).astype(np.float64), residuals, np.array(self._squared_z_scores)
        )

    def predict(self, rows: NDArray[np.float32], priors: Array) -> tuple[Array, Array]:
        """(mean, spread) of the log of the figure."""
        if not self.is_ready:
            return np.log(priors), np.full(len(priors), PRIOR_STD)
        mean, spread, surprise = self._predict_uncalibrated(rows, priors)
        return mean, spread * np.sqrt(surprise)

    def _predict_uncalibrated(self, rows: NDArray[np.float32], priors: Array) -> tuple[Array, Array, Array]:
        """(mean, spread as the models have it, squared surprise around)."""
        guess = get_prediction_pool().submit(self.trees.predict, rows, priors)
        mean, spread, surprise = self.gaussian_process.predict(rows.astype(np.float64))
        mean, trees = mean + np.log(priors), np.log(guess.result())
        both = self.tree_share * trees + (1 - self.tree_share) * mean
        return both, np.sqrt(spread**2 + ((trees - mean) / 2) ** 2), surprise

    def predict_correlation(self, rows: NDArray[np.float32]) -> Array:
        """Of what measurements will say and nobody knows yet, pair by pair, as the process sees it."""
        return self.gaussian_process.predict_correlation(rows.astype(np.float64))


def _compute_squared_z_scores(mean: Array, std: Array, log_values: Array, values: Array) -> list[float]:
    """Of what is learned of figures just measured, against what was expected; NaN for what failed. What is
    bent is held against what was bent: else all that is bad would surprise for ever, upwards, and be
    promised to surprise downwards."""
    squares = np.minimum(((log_values - mean) / std) ** 2, MAX_SQUARED_Z_SCORE)
    told: list[float] = np.where(np.isfinite(values), squares, np.nan).tolist()
    return told


def _replace_failures(values: list[float]) -> Array:
    """What failed counts as the worst."""
    seen = np.array(values)
    return np.where(np.isfinite(seen), seen, np.nanmax(seen))


def _clip_residuals(priors: Array, values: Array, residual_clip: float) -> Array:
    """The residuals that models learn: log of figure over prior. From `bad` above their median on they grow
    as their logarithm, but for figures within `bad` of the best: nothing slow is learned as fast."""
    residuals = np.log(values / priors)
    of_the_best = np.log(values.min()) - np.log(priors)
    begins = np.maximum(np.median(residuals), of_the_best) + residual_clip
    beyond = np.maximum(residuals - begins, 0.0)
    return np.asarray(np.minimum(residuals, begins) + residual_clip * np.log1p(beyond / residual_clip))


def normal_cdf(z: Array) -> Array:
    """The probability that a normal law gives to what is less than so many spreads above its mean."""
    return 0.5 * np.asarray(_ERFC(-z / math.sqrt(2)), dtype=np.float64)


def log_expected_improvement(mean: Array, std: Array, best: Array | float) -> Array:
    """Log of the expected improvement on `best` where the truth is normal around the mean: higher is better.

    All three are logs of figures, lower being better.
    """
    z = (best - mean) / std
    near = np.maximum(z, _TAIL_Z_SCORE)
    below = np.full(z.shape, _TAIL_PROBABILITY)
    at = z > _TAIL_Z_SCORE
    below[at] = normal_cdf(z[at])
    gain = near * below + np.exp(-near * near / 2) / math.sqrt(2 * math.pi)
    # Far out, two terms of the tail: density / z^2 x (1 - 3 / z^2).
    far = np.minimum(z, _TAIL_Z_SCORE)
    tail = -z * z / 2 - 0.5 * math.log(2 * math.pi) - 2 * np.log(-far) + np.log1p(-3 / far**2)
    return np.asarray(np.log(std) + np.where(at, np.log(gain), tail))
