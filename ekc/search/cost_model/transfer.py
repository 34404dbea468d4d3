"""Transfer learning: a better prior for a new operator or device, from recorded kernels of other ones.

The error of a prior depends on the features, and partly in the same way for other shapes and
devices. Trees learn it relative to the median of each operator and device: constant factors do not carry
over, and a run learns its own at once. The trust in the trees is measured by predicting each group from the
others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ekc.search.cost_model.features import ModelInputs
from ekc.search.cost_model.power_model import scale_power
from ekc.search.cost_model.xgboost_model import ResidualModel
from ekc.search.data.defaults import SURROGATE, TRANSFER

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MeasuredGroup:
    """Measured kernels of one operator on one device. Arrays have one element per kernel."""

    name: str
    """Operator and device in words."""
    inputs: ModelInputs
    latency_s: Array
    power_w: Array
    """Measured power in watts; NaN for kernels that were not metered."""

    @property
    def log_latency_residual(self) -> Array:
        """Log of measured latency over expected latency."""
        return np.log(self.latency_s / self.inputs.expected_latency_s)

    @property
    def log_power_residual(self) -> Array:
        """Log of measured power, scaled to the expected latency, over expected power."""
        standby = self.inputs.standby_w
        at_prior = scale_power(self.power_w, -self.log_latency_residual, standby)
        return np.log(np.maximum(at_prior, standby) / self.inputs.expected_power_w)


@dataclass(frozen=True, eq=False)
class TransferModel:
    """Model of the error of the prior in one figure, learned from some groups."""

    trees: ResidualModel
    trust: float
    """Share of the trees' prediction that is used, 0 to 1: measured on groups not learned from."""
    row_count: int
    """Kernels that the trees learned from."""

    def predict_log_factor(self, rows: NDArray[np.float32]) -> Array:
        """Log of the factor to multiply the prior by, for each feature row."""
        if not self.trust:
            return np.zeros(len(rows))
        return np.asarray(self.trust * np.log(self.trees.predict(rows, np.ones(len(rows)))))


@dataclass(frozen=True, eq=False)
class TransferPrior:
    """Models of the prior's error in latency and power."""

    latency_model: TransferModel
    power_model: TransferModel
    group_names: tuple[str, ...]
    metered_by_unused_group: Mapping[str, int] = field(default_factory=dict)
    """Metered kernels of each group that has too few of them for the model of power."""

    def correct_inputs(self, inputs: ModelInputs) -> ModelInputs:
        """The inputs with corrected expected latency and power."""
        latency_factor = self.latency_model.predict_log_factor(inputs.features)
        power_factor = self.power_model.predict_log_factor(inputs.features)
        # Below standby power the work would have negative energy, and at a low latency negative power.
        standby_w = inputs.standby_w
        power_w = np.maximum(inputs.expected_power_w * np.exp(power_factor), standby_w)
        return replace(
            inputs,
            expected_latency_s=inputs.expected_latency_s * np.exp(latency_factor),
            expected_power_w=scale_power(power_w, latency_factor, standby_w),
        )

    def __str__(self) -> str:
        names, trust = ", ".join(self.group_names), f"{self.latency_model.trust:.0%} for latency"
        count = f"{self.latency_model.row_count} timed"
        if self.power_model.row_count:
            count += f" and {self.power_model.row_count} metered"
            trust += f", {self.power_model.trust:.0%} for power"
        text = f"{count} kernels of {names}; trust in them: {trust}"
        unused = ", ".join(f"{n} of {name}" for name, n in self.metered_by_unused_group.items())
        needed = f"power is learned from at least {SURROGATE.min_rows} metered kernels of an operator"
        return f"{text}; {needed}, and there are {unused}" if unused else text


def learn_transfer_prior(groups: Sequence[MeasuredGroup], seed: int) -> TransferPrior:
    """Learn the error of the prior from at least one group."""
    timed = [_GroupResiduals(g.inputs.features, g.log_latency_residual, g.latency_s) for g in groups]
    metered, unused = [], {}
    for g in groups:
        is_metered = np.isfinite(g.power_w)
        if is_metered.sum() < SURROGATE.min_rows:
            unused[g.name] = int(is_metered.sum())
        else:
            energy_j = (g.latency_s * g.power_w)[is_metered]
            residuals = g.log_power_residual[is_metered]
            metered.append(_GroupResiduals(g.inputs.features[is_metered], residuals, energy_j))
    models = _learn_transfer_model(timed, seed), _learn_transfer_model(metered, seed)
    return TransferPrior(*models, tuple(g.name for g in groups), unused)


@dataclass(frozen=True, eq=False)
class _GroupResiduals:
    """Feature rows of one group, log residuals of the prior, and the values of the objective."""

    rows: NDArray[np.float32]
    residuals: Array
    objective_values: Array

    @property
    def centered_residuals(self) -> Array:
        """Residuals minus their median."""
        return self.residuals - np.median(self.residuals)


def _learn_transfer_model(groups: Sequence[_GroupResiduals], seed: int) -> TransferModel:
    if not groups:
        return TransferModel(ResidualModel(seed), 0.0, 0)
    row_count = sum(len(g.rows) for g in groups)
    return TransferModel(_fit_trees(groups, seed), _estimate_trust(groups, seed), row_count)


def _fit_trees(groups: Sequence[_GroupResiduals], seed: int) -> ResidualModel:
    trees = ResidualModel(seed)
    for g in groups:
        objective = g.objective_values / g.objective_values.min()
        for row, residual, value in zip(
            g.rows, g.centered_residuals.tolist(), objective.tolist(), strict=True
        ):
            trees.add_row(row, 1.0, float(np.exp(residual)), value)
    trees.fit()
    return trees


def _estimate_trust(groups: Sequence[_GroupResiduals], seed: int) -> float:
    """Slope of a group's residuals over their prediction from the other groups, good rows weighted most."""
    if len(groups) < 2:
        return TRANSFER.single_group_trust
    covariance = variance = 0.0
    for i, group in enumerate(groups):
        trees = _fit_trees([*groups[:i], *groups[i + 1 :]], seed)
        predicted = np.log(trees.predict(group.rows, np.ones(len(group.rows))))
        weights = (group.objective_values.min() / group.objective_values) ** trees.sharpness
        weights = weights / weights.sum()
        predicted = predicted - weights @ predicted
        covariance += float(weights @ (predicted * group.residuals))
        variance += float(weights @ (predicted * predicted))
    return float(np.clip(covariance / variance, 0.0, 1.0)) if variance else 0.0
