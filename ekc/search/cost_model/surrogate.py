"""The surrogate of a figure (latency, power, registers): its mean and standard deviation before measurement.

A Gaussian process learns the log of figure over prior. With a tree share, the mean is a weighted mean with
that of boosted trees, and half the distance between the two is a second part of the standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.search.cost_model.gaussian_process import GaussianProcess
from ekc.search.cost_model.xgboost_model import ResidualModel
from ekc.search.data.defaults import SURROGATE

Array = NDArray[np.float64]


@dataclass
class Surrogate:
    """A model of one figure; lower is better."""

    seed: int = 0
    """Seed of the boosted trees; the Gaussian process uses no random numbers."""
    tree_share: float = 0.0
    """Weight of boosted trees in the mean; the Gaussian process has the rest. 0: no trees are trained."""
    residual_clip: float = SURROGATE.residual_clip
    """Log distance above the larger of median residual and best figure, from which on residuals are clipped.
    A search only needs to know the good figures, so it uses a small one."""
    gaussian_process: GaussianProcess = field(default_factory=GaussianProcess)
    _trees: ResidualModel | None = None
    _rows: list[NDArray[np.float32]] = field(default_factory=list)
    _priors: list[float] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)
    _objective_values: list[float] = field(default_factory=list)

    @property
    def is_ready(self) -> bool:
        """Whether enough rows are measured to use more than the prior."""
        return len(self._values) >= SURROGATE.min_rows and bool(np.isfinite(self._values).any())

    def learn(
        self, rows: NDArray[np.float32], priors: Array, values: Array, objective_values: Array | None = None
    ) -> None:
        """Learn measured figures. NaN: the kernel failed, which counts as the worst figure. Rows of low
        `objective_values` have most weight in the trees; by default these are the figures."""
        self._rows.extend(rows)
        self._priors.extend(priors.tolist())
        self._values.extend(values.tolist())
        self._objective_values.extend((values if objective_values is None else objective_values).tolist())
        if not self.is_ready:
            return
        priors = np.array(self._priors)
        residuals = _clip_residuals(priors, _replace_failures(self._values), self.residual_clip)
        if self.tree_share:
            self._train_trees(priors * np.exp(residuals))
        self.gaussian_process.fit(np.stack(self._rows).astype(np.float64), residuals)

    def _train_trees(self, figures: Array) -> None:
        objective = _replace_failures(self._objective_values)
        self._trees = ResidualModel(self.seed)
        for row, *numbers in zip(self._rows, self._priors, figures.tolist(), objective.tolist(), strict=True):
            self._trees.add_row(row, *numbers)
        self._trees.fit()

    def predict(self, rows: NDArray[np.float32], priors: Array) -> tuple[Array, Array]:
        """(mean, standard deviation) of the log of the figure at each row."""
        if not self.is_ready:
            return np.log(priors), np.full(len(priors), SURROGATE.prior_std)
        residual, std = self.gaussian_process.predict(rows.astype(np.float64))
        mean = residual + np.log(priors)
        if self._trees is None:
            return mean, std
        distance = np.log(self._trees.predict(rows, priors)) - mean
        return mean + self.tree_share * distance, np.sqrt(std**2 + (distance / 2) ** 2)

    def predict_correlation(self, rows: NDArray[np.float32]) -> Array:
        """[rows, rows]: correlation of future measurements at each pair of rows, by the Gaussian process."""
        return self.gaussian_process.predict_correlation(rows.astype(np.float64))


def _replace_failures(values: list[float]) -> Array:
    """The values with the worst of them for each failure (NaN)."""
    figures = np.array(values)
    return np.where(np.isfinite(figures), figures, np.nanmax(figures))


def _clip_residuals(priors: Array, values: Array, residual_clip: float) -> Array:
    """The residuals that models learn: log of figure over prior, which grow only logarithmically from
    `residual_clip` above their median on. Figures within `residual_clip` of the best are not clipped: no slow
    kernel is learned as fast."""
    residuals = np.log(values / priors)
    best = np.log(values.min()) - np.log(priors)
    start = np.maximum(np.median(residuals), best) + residual_clip
    excess = np.maximum(residuals - start, 0.0)
    return np.asarray(np.minimum(residuals, start) + residual_clip * np.log1p(excess / residual_clip))
