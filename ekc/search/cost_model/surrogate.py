"""The surrogate of the latency before it is measured; and the spill model, that of registers.

A Gaussian process learns the log of figure over prior. In the search of a model it also learns from the rows
of other layers: the prior makes similar errors for similar schedules of any layer, as it does not model bank
conflicts, for example. The layers share logs of figure over prior, each relative to the median of its layer,
since a factor that all schedules of a layer have in common does not carry over, and does not change their
order.

The spill model has the probability that a kernel needs no more registers than it can have. The registers of
a kernel are estimated before it is compiled, and the rule "registers" refuses schedules that need too many.
Near the limit the estimate errs, and a kernel that spills is four to three hundred times slower than
expected. Such a latency is not used to learn other latencies: it made the surrogate uncertain about all
similar kernels, and uncertainty scores high, so that a search spent its trials on more of them. Instead the
model learns registers needed, as ptxas reports them, over registers estimated. The acquisition multiplies the
expected improvement by the probability (constrained expected improvement: Gardner and others, 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.codegen.compiled import Resources
from ekc.gaussian_process import Array, normal_cdf
from ekc.ir.hardware.memory import WARP
from ekc.ir.hardware.target import LaunchLimits
from ekc.search.cost_model.feature_process import FeatureProcess
from ekc.search.cost_model.features import REGISTERS_COLUMN, THREADS_COLUMN
from ekc.search.cost_model.row_weights import select_training_rows
from ekc.search.data.defaults import PEERS, SPILLS, SURROGATE


@dataclass(frozen=True, eq=False)
class ResidualRows:
    """Measured rows of one layer."""

    rows: Array
    """[rows, features]."""
    residuals: Array
    """[rows]: log of figure over prior, relative to the median of the layer."""


@dataclass
class PeerRows:
    """The measured rows of all layers of a model; each layer publishes its own."""

    _by_layer: list[ResidualRows | None] = field(default_factory=list)
    version: int = 0
    """Number of changes so far."""

    def join(self) -> int:
        """Add a layer, and return its place."""
        self._by_layer.append(None)
        return len(self._by_layer) - 1

    def publish(self, place: int, rows: ResidualRows) -> None:
        """Replace the rows of a layer."""
        self._by_layer[place] = rows
        self.version += 1

    def collect(self, place: int) -> list[ResidualRows]:
        """Collect rows of other layers: of the `max_peers` nearest to the layer, or of the last ones while
        that has no rows. Of each layer, those of the least residuals and some of the rest."""
        others = [x for i, x in enumerate(self._by_layer) if i != place and x is not None and len(x.rows)]
        if len(others) > PEERS.max_peers:
            others = _find_nearest(others, self._by_layer[place])
        share = PEERS.max_rows // max(len(others), 1)
        kept = [select_training_rows(x.residuals, share) for x in others]
        return [ResidualRows(x.rows[k], x.residuals[k]) for x, k in zip(others, kept, strict=True)]


def _find_nearest(others: list[ResidualRows], own: ResidualRows | None) -> list[ResidualRows]:
    """Find the `max_peers` layers whose mean features are nearest to those of a layer."""
    if own is None or not len(own.rows):
        return others[-PEERS.max_peers :]
    means = np.stack([x.rows.mean(axis=0) for x in others])
    spread = means.std(axis=0)
    distance = np.square((means - own.rows.mean(axis=0)) / np.where(spread > 0, spread, 1.0)).sum(axis=1)
    return [others[i] for i in np.argsort(distance, kind="stable")[: PEERS.max_peers]]


@dataclass
class Surrogate:
    """A model of one figure; lower is better."""

    residual_clip: float = SURROGATE.residual_clip
    """Log distance above the larger of median residual and best figure, from which on residuals are clipped.
    A search only needs to know the good figures, so it uses a small one."""
    gaussian_process: FeatureProcess = field(default_factory=FeatureProcess)
    _rows: Array = field(default_factory=lambda: np.zeros((0, 0)))
    _residuals: Array = field(default_factory=lambda: np.zeros(0))
    """Clipped residuals of the rows."""
    _peers: PeerRows | None = None
    _place: int = 0
    _peer_version: int = 0
    """Version of the rows of other layers that were learned from last."""
    _level: float = 0.0
    """Log of figure over prior that the residuals are relative to: with other layers, the median."""

    @property
    def is_ready(self) -> bool:
        """Whether enough rows are measured to use more than the prior."""
        return len(self._residuals) >= SURROGATE.min_rows

    def learn(self, rows: NDArray[np.float32], priors: Array, values: Array) -> None:
        """Learn the measured figures of these rows; earlier ones are forgotten. NaN: the kernel failed, which
        counts as the worst figure."""
        if not np.isfinite(values).any():
            return
        self._rows = rows.astype(np.float64)
        self._residuals = _clip_residuals(priors, _replace_failures(values), self.residual_clip)
        if self._peers is not None:
            self._peers.publish(self._place, self._center_rows())
        elif self.is_ready:
            self.gaussian_process.fit(self._rows, self._residuals)

    def join(self, peers: PeerRows) -> None:
        """Share rows with the other layers of a model. Call before any row is learned."""
        self._peers, self._place = peers, peers.join()

    def _learn_from_peers(self) -> None:
        """Fit the Gaussian process to the rows of all layers, unless that was done."""
        if self._peers is None or self._peers.version == self._peer_version:
            return
        self._peer_version = self._peers.version
        parts = [self._center_rows(), *self._peers.collect(self._place)]
        if sum(len(x.residuals) for x in parts) >= SURROGATE.min_rows:
            groups = np.repeat(np.arange(len(parts)), [len(x.residuals) for x in parts])
            rows = np.concatenate([x.rows for x in parts if len(x.residuals)])
            self.gaussian_process.fit(rows, np.concatenate([x.residuals for x in parts]), groups)

    def _center_rows(self) -> ResidualRows:
        """The own rows, their residuals relative to the median."""
        if not len(self._residuals):
            return ResidualRows(np.zeros((0, 0)), self._residuals)
        self._level = float(np.median(self._residuals))
        return ResidualRows(self._rows, self._residuals - self._level)

    def predict(self, rows: NDArray[np.float32], priors: Array) -> tuple[Array, Array]:
        """(mean, standard deviation) of the log of the figure at each row."""
        self._learn_from_peers()
        if not self.gaussian_process.is_fitted:
            return np.log(priors), np.full(len(priors), SURROGATE.prior_std)
        residual, std = self.gaussian_process.predict(rows.astype(np.float64))
        return residual + np.log(priors) + self._level, std

    def predict_correlation(self, rows: NDArray[np.float32]) -> Array:
        """[rows, rows]: correlation of future measurements at each pair of rows, by the Gaussian process."""
        self._learn_from_peers()
        return self.gaussian_process.predict_correlation(rows.astype(np.float64))


def _replace_failures(values: Array) -> Array:
    """The values with the worst of them for each failure (NaN)."""
    return np.where(np.isfinite(values), values, np.nanmax(values))


def _clip_residuals(priors: Array, values: Array, residual_clip: float) -> Array:
    """The residuals that models learn: log of figure over prior, which grow only logarithmically from
    `residual_clip` above their median on. Figures within `residual_clip` of the best are not clipped: no slow
    kernel is learned as fast."""
    residuals = np.log(values / priors)
    best = np.log(values.min()) - np.log(priors)
    start = np.maximum(np.median(residuals), best) + residual_clip
    excess = np.maximum(residuals - start, 0.0)
    return np.asarray(np.minimum(residuals, start) + residual_clip * np.log1p(excess / residual_clip))


REGISTER_ALLOCATION_UNIT = 8
"""Registers per thread are allocated in multiples of this."""


def has_spilled(resources: Sequence[Resources]) -> bool:
    """Whether any launch spills registers to memory."""
    return any(r.stack_bytes > SPILLS.stack_bytes for r in resources)


def count_needed_registers(resources: Sequence[Resources]) -> float:
    """Registers per thread of the largest launch: those it has, and its stack in registers."""
    return max(r.registers + r.stack_bytes / 4 for r in resources)


class SpillModel:
    """Model of the registers needed over the registers estimated, on a device with these limits."""

    def __init__(self, limits: LaunchLimits) -> None:
        self._limits = limits
        self._surrogate = Surrogate()
        self._max_log_error = 0.0
        """Largest log of registers needed over estimated so far."""

    def learn(self, rows: NDArray[np.float32], resources: Sequence[Sequence[Resources]]) -> None:
        """Learn from the feature rows of compiled kernels, and the resources that ptxas reported for each."""
        estimated = _decode_count(rows, REGISTERS_COLUMN)
        needed = np.array([count_needed_registers(r) for r in resources])
        self._max_log_error = max(self._max_log_error, float(np.log(needed / estimated).max()))
        self._surrogate.learn(rows, estimated, needed)

    def predict_log_feasibility(self, rows: NDArray[np.float32]) -> Array:
        """Log of the probability that each kernel does not spill. 0 if no estimate was ever wrong by the
        distance to the limit, and for all kernels before enough were compiled."""
        log = np.zeros(len(rows))
        estimated = np.log(_decode_count(rows, REGISTERS_COLUMN))
        budget = np.log(self._compute_register_budget(rows))
        near = np.flatnonzero(estimated + self._max_log_error > budget)
        if self._surrogate.is_ready and len(near):
            mean, std = self._surrogate.predict(rows[near], np.exp(estimated[near]))
            log[near] = np.log(np.maximum(normal_cdf((budget[near] - mean) / std), SPILLS.min_feasibility))
        return log

    def _compute_register_budget(self, rows: NDArray[np.float32]) -> Array:
        """Registers per thread that a kernel may need without a spill."""
        threads = np.ceil(_decode_count(rows, THREADS_COLUMN) / WARP) * WARP
        units = np.floor(self._limits.registers_per_sm / threads / REGISTER_ALLOCATION_UNIT)
        per_thread = np.minimum(units * REGISTER_ALLOCATION_UNIT, self._limits.registers_per_thread)
        return np.asarray(per_thread + SPILLS.stack_bytes / 4)


def _decode_count(rows: NDArray[np.float32], column: int) -> Array:
    """The count of a feature column log2(1 + count)."""
    return np.asarray(np.exp2(rows[:, column].astype(np.float64)) - 1.0)
