"""What kernels on file teach of operators and devices that they are not of: a better prior.

The prior errs in ways that its features show, and that other shapes and devices share. Trees learn what it
gets wrong, against the middle of each operator and device, for constant factors do not carry over and a run
finds its own at once. How far they are believed is measured: each group is predicted by the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import Peaks
from ekc.search.cost_model import analytic
from ekc.search.cost_model.features import ModelInputs
from ekc.search.cost_model.xgboost_model import MIN_ROWS, ResidualModel

Array = NDArray[np.float64]

SINGLE_GROUP_TRUST = 0.5
"""How far one group is believed, which no other can test."""


@dataclass(frozen=True, eq=False)
class MeasuredGroup:
    """Measured kernels of one operator on one device. Arrays run over the kernels."""

    name: str
    inputs: ModelInputs
    latency_s: Array
    power_w: Array
    """NaN where nobody metered."""
    peaks: Peaks

    @property
    def log_latency_residual(self) -> Array:
        """Log of the latency over what the prior expects."""
        return np.log(self.latency_s / self.inputs.expected_latency_s)

    @property
    def log_power_residual(self) -> Array:
        """Log of the watts, had the kernel run at the pace of the prior, over what the prior expects."""
        standby = self.inputs.predict_standby_w(self.peaks)
        at_prior = analytic.scale_power(self.power_w, -self.log_latency_residual, standby)
        return np.log(np.maximum(at_prior, standby) / self.inputs.expected_power_w)


@dataclass(frozen=True, eq=False)
class TransferModel:
    """What some groups teach of one figure."""

    trees: ResidualModel
    trust: float
    """How much of what the trees said of a group that they had not seen was so: 0 to 1."""
    row_count: int

    def predict_log_factor(self, rows: NDArray[np.float32]) -> Array:
        """Log of the factor that the prior is off by, for feature rows."""
        if not self.trust:
            return np.zeros(len(rows))
        return np.asarray(self.trust * np.log(self.trees.predict(rows, np.ones(len(rows)))))


@dataclass(frozen=True, eq=False)
class TransferPrior:
    """Lessons of both figures, for a device with these peaks."""

    latency_model: TransferModel
    power_model: TransferModel
    group_names: tuple[str, ...]
    peaks: Peaks

    def correct_inputs(self, inputs: ModelInputs) -> ModelInputs:
        """The same schedules, expected to take and to draw what these lessons say."""
        pace, strain = (
            self.latency_model.predict_log_factor(inputs.features),
            self.power_model.predict_log_factor(inputs.features),
        )
        # Less than the board draws anyway would be less than no work, and at a quick pace less than no watts.
        standby = inputs.predict_standby_w(self.peaks)
        watts = analytic.scale_power(
            np.maximum(inputs.expected_power_w * np.exp(strain), standby), pace, standby
        )
        return replace(
            inputs, expected_latency_s=inputs.expected_latency_s * np.exp(pace), expected_power_w=watts
        )

    def __str__(self) -> str:
        return (
            f"{self.latency_model.row_count} timed and {self.power_model.row_count} metered kernels of {', '.join(self.group_names)}; "
            f"believed {self.latency_model.trust:.0%} of what they say of latency, {self.power_model.trust:.0%} of power"
        )


def learn_transfer_prior(groups: Sequence[MeasuredGroup], peaks: Peaks, seed: int) -> TransferPrior:
    """Learn from at least one group."""
    timed = [_GroupResiduals(g.inputs.features, g.log_latency_residual, g.latency_s) for g in groups]
    metered = []
    for g in groups:
        known = np.isfinite(g.power_w)
        if known.sum() >= MIN_ROWS:
            joules = (g.latency_s * g.power_w)[known]
            metered.append(_GroupResiduals(g.inputs.features[known], g.log_power_residual[known], joules))
    return TransferPrior(
        _learn_transfer_model(timed, seed),
        _learn_transfer_model(metered, seed),
        tuple(g.name for g in groups),
        peaks,
    )


@dataclass(frozen=True, eq=False)
class _GroupResiduals:
    """Rows of one group, what the prior missed there against the group's middle, and how good each is."""

    rows: NDArray[np.float32]
    residuals: Array
    objective_values: Array

    @property
    def centered_residuals(self) -> Array:
        return self.residuals - np.median(self.residuals)


def _learn_transfer_model(groups: Sequence[_GroupResiduals], seed: int) -> TransferModel:
    if not groups:
        return TransferModel(ResidualModel(seed), 0.0, 0)
    return TransferModel(
        _fit_trees(groups, seed), _estimate_trust(groups, seed), sum(len(t.rows) for t in groups)
    )


def _fit_trees(groups: Sequence[_GroupResiduals], seed: int) -> ResidualModel:
    trees = ResidualModel(seed)
    for t in groups:
        merits = t.objective_values / t.objective_values.min()
        for row, apart, merit in zip(t.rows, t.centered_residuals.tolist(), merits.tolist(), strict=True):
            trees.add_row(row, 1.0, float(np.exp(apart)), merit)
    trees.fit()
    return trees


def _estimate_trust(groups: Sequence[_GroupResiduals], seed: int) -> float:
    """The slope of what was missed over what the other groups said of it, the good rows weighing most."""
    if len(groups) < 2:
        return SINGLE_GROUP_TRUST
    together = spread = 0.0
    for i, own in enumerate(groups):
        trees = _fit_trees([*groups[:i], *groups[i + 1 :]], seed)
        said = np.log(trees.predict(own.rows, np.ones(len(own.rows))))
        weights = (own.objective_values.min() / own.objective_values) ** trees.sharpness
        weights = weights / weights.sum()
        said = said - weights @ said
        together += float(weights @ (said * own.residuals))
        spread += float(weights @ (said * said))
    return float(np.clip(together / spread, 0.0, 1.0)) if spread else 0.0
