"""The acquisition function: the value of measuring a genome, and batches of genomes picked by it.

The value is the expected improvement on the incumbent. Improvements beyond a lower bound of the figure do not
count, and the value is multiplied by the probability that the kernel is feasible, that is does not spill.

Good genomes resemble each other: one pad more, another vector width. Measuring one of them tells most of the
figures of the others. So a batch is picked one by one, each genome as if those picked before it had been
measured with the predicted figures: their part of its uncertainty is gone, and the best of them is the
incumbent (the Kriging believer of Ginsbourger, Le Riche and Carraro, 2010).

The incumbent of a run: the best schedule so far, and the objective that others must improve on.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import Peaks
from ekc.gaussian_process import Array, log_expected_improvement
from ekc.ir.operator import Operator
from ekc.search.cost_model.features import ModelInputCache
from ekc.search.cost_model.learner import Learner
from ekc.search.data.candidate import Candidate
from ekc.search.data.defaults import ACQUISITION, SURROGATE
from ekc.search.data.options import TuneOptions
from ekc.search.data.population import Population
from ekc.search.data.result import compute_min_latency_s
from ekc.search.data.selection import compute_objective


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

    def score(self, latency_s: Any, power_w: Any) -> Array:
        """Compute the objective, with a penalty on latencies above `max_latency_s`."""
        value = compute_objective(self.options.objective, latency_s, latency_s * power_w)
        excess = np.maximum(latency_s / self.max_latency_s, 1.0)
        return np.asarray(value * excess**ACQUISITION.infeasibility_exponent)

    @cached_property
    def max_latency_s(self) -> float:
        """Latency of the fastest candidate, plus the allowed slowdown; infinity without candidates."""
        return (1 + self.options.max_slowdown) * float(self.latencies_s.min(initial=math.inf))


_MIN_VARIANCE_SHARE = 1e-6
"""Share of a variance below which it has no significant digits left."""
_MAX_UNREACHABLE_SHARE = 1.0 - 1e-9
"""Share of an expected improvement beyond the lower bound, at most: scores stay finite and in order."""


@dataclass(frozen=True, eq=False)
class PredictedFigures:
    """Predictions of a figure of some genomes, as normal distributions of its log; lower is better."""

    mean: Array
    std: Array
    """Standard deviation that the next measurement removes."""
    best: float
    """Log of the figure to improve on."""
    unobserved_std: Array | float = 0.0
    """Standard deviation that it does not remove: that of the power, for a kernel that is only timed."""
    lower_bound: Array | float = -np.inf
    """Log of a figure that the genome cannot be better than."""
    log_feasibility: Array | float = 0.0
    """Log of the probability that the figure follows the prediction: a kernel that spills is much slower."""

    def score(self, variance_share: Array | float = 1.0, best: float | None = None) -> Array:
        """Negative log of the expected improvement, also on `best`; lower is better. `variance_share`: share
        of the variance that a measurement would still remove."""
        std = np.hypot(self.std * np.sqrt(variance_share), self.unobserved_std)
        best = self.best if best is None else best
        gain = log_expected_improvement(self.mean, std, best)
        if isinstance(self.lower_bound, float):
            return -(gain + self.log_feasibility)
        # Improvements beyond the lower bound do not count.
        beyond = log_expected_improvement(self.mean, std, np.minimum(self.lower_bound, best)) - gain
        reachable = np.log1p(-np.minimum(np.exp(beyond), _MAX_UNREACHABLE_SHARE))
        return -(gain + reachable + self.log_feasibility)

    def __getitem__(self, rows: NDArray[np.intp]) -> PredictedFigures:
        others = self.unobserved_std, self.lower_bound, self.log_feasibility
        columns = (x if isinstance(x, float) else x[rows] for x in others)
        return PredictedFigures(self.mean[rows], self.std[rows], self.best, *columns)

    def pick_batch(self, count: int, correlation: Array) -> list[int]:
        """Pick up to `count` of n rows, in the order of picking.

        `correlation[n + m, n + m]`: correlation of the unknown parts of the measurements; the last m rows are
        in the batch already. After each pick, the others keep the conditional variance of a normal
        distribution.
        """
        rows, best = len(self.mean), self.best
        covariance, picked = correlation.copy(), list[int]()
        for batch_row in range(rows, len(covariance)):
            _condition_on(covariance, batch_row)
        for _ in range(min(count, rows)):
            variance_share = np.clip(np.diagonal(covariance)[:rows], _MIN_VARIANCE_SHARE, 1.0)
            scores = self.score(variance_share, best)
            scores[picked] = np.inf
            picked.append(int(np.argmin(scores)))
            best = min(best, float(self.mean[picked[-1]]))
            _condition_on(covariance, picked[-1])
        return picked


def _condition_on(covariance: Array, row: int) -> None:
    """Subtract the part of a covariance that is known once a row is measured, in place."""
    variance = max(covariance[row, row], _MIN_VARIANCE_SHARE)
    covariance -= np.outer(covariance[:, row], covariance[row]) / variance


class Acquisition(ABC):
    """The acquisition function of a search: scores genomes and picks batches."""

    @abstractmethod
    def predict_figures(self, population: Population) -> tuple[PredictedFigures, ...]:
        """Predict the figures that a batch is picked by, in equal shares; the first one is the objective."""

    @abstractmethod
    def predict_correlation(self, population: Population) -> Array:
        """Predict the correlation of the unknown parts of each two measurements."""

    def score(self, population: Population) -> Array:
        """Score genomes for breeding; lower is better."""
        return self.predict_figures(population)[0].score() if len(population) else np.zeros(0)

    def pick(
        self,
        population: Population,
        figures: PredictedFigures,
        rows: NDArray[np.intp],
        count: int,
        batch: Sequence[Population],
    ) -> NDArray[np.intp]:
        """Pick up to `count` rows by the population's predicted figures. `batch`: genomes picked already."""
        correlation = self.predict_correlation(sum(batch, population[rows]))
        return rows[figures[rows].pick_batch(count, correlation)]


class LearnedAcquisition(Acquisition):
    """The acquisition function of a tuning run, by the models that the run learns."""

    def __init__(
        self,
        op: Operator,
        peaks: Peaks,
        learner: Learner,
        input_cache: ModelInputCache,
        find_incumbent: Callable[[], Incumbent],
    ) -> None:
        self.op, self.peaks, self.learner, self.input_cache = op, peaks, learner, input_cache
        self.find_incumbent = find_incumbent

    def predict_figures(self, population: Population) -> tuple[PredictedFigures, ...]:
        """Predict the objective, and the latency if that is not the objective."""
        incumbent, inputs = self.find_incumbent(), self.input_cache.get_inputs(population)
        mean, std, power, power_std = self.learner.predict(inputs)
        least_s = compute_min_latency_s(self.op, 2 * inputs.fma_count, self.peaks)
        log_feasibility = self.learner.spill_model.predict_log_feasibility(inputs.features)
        best_latency = _compute_log_best(incumbent.latencies_s)
        latency = PredictedFigures(mean, std, best_latency, 0.0, np.log(least_s), log_feasibility)
        if incumbent.options.objective == "latency":
            return (latency,)
        # The lower bound: the least latency on the roofline, at a power that is hardly lower.
        low, high = (incumbent.score(np.exp(x), np.exp(power)) for x in (mean, mean + std))
        least_w = np.exp(power - SURROGATE.lower_bound_stds * power_std)
        objective = PredictedFigures(
            mean=np.log(low),
            std=np.log(high / low),
            best=_compute_log_best(incumbent.scores),
            unobserved_std=power_std,
            lower_bound=np.log(incumbent.score(least_s, least_w)),
            log_feasibility=log_feasibility,
        )
        return objective, latency

    def predict_correlation(self, population: Population) -> Array:
        """Predict correlations by the latency model: every trial is timed, and few are metered."""
        features = self.input_cache.get_inputs(population).features
        return self.learner.latency_model.predict_correlation(features)


def _compute_log_best(figures: Array) -> float:
    """Log of the least figure; before the first measurement, of one that every figure improves on."""
    return math.log(figures.min()) if len(figures) else ACQUISITION.initial_log_best
