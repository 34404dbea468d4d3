"""The stopping rule of `effort`: a round must be expected to save more than it costs.

The models predict an improvement for each schedule of the next batch. These predictions are optimistic, as
the search picks the schedules of the largest ones. So their sum is scaled by the accuracy of earlier
predictions: achieved improvement divided by predicted improvement, both beginning with 10 %. After rounds
without any improvement, the factor is about 10 % divided by their number. The scaled improvement, times the
cost of one call of the best schedule, times the calls that the effort expects, is the saving. The cost of a
round is the mean device cost of the trials so far, and the idling of the board while kernels are compiled.

No clock is read: the same seed stops at the same trial, resumed or not, with any number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ekc.search.data.defaults import STOPPING, StoppingSettings
from ekc.search.data.population import Population
from ekc.search.loop.task import ScheduleTask
from ekc.tables import format_rounded


@dataclass
class CostBenefitRule:
    """Stops a search before a batch that is expected to cost more than it saves."""

    task: ScheduleTask
    expected_calls: float
    """Calls of the kernel over its life."""
    settings: StoppingSettings = STOPPING
    _energy_before_j: float | None = None
    """Joules used before the first round, for the baseline."""
    _predicted_total: float = 0.0
    _achieved_total: float = 0.0
    _pending: tuple[float, float] | None = None
    """(predicted improvement, best score before) of the batch that was allowed last."""

    def __post_init__(self) -> None:
        self._predicted_total = self._achieved_total = self.settings.initial_credit

    def should_stop(self, batch: Sequence[Population], trial_count: int) -> str | None:
        """Return why the batch would cost more than it saves; None if it may be measured."""
        if self._energy_before_j is None:
            self._energy_before_j = self.task.measurer.cost.joules
        self._credit_pending_batch()
        if not (self.task.learner.latency_model.is_ready and self.task.timed_candidates):
            return None
        predicted = self._sum_expected_improvements(batch)
        saving, cost = self._estimate_saving(predicted), self._estimate_round_cost(trial_count)
        if saving >= cost:
            self._pending = predicted, float(self.task.incumbent.scores.min())
            return None
        unit = "s" if self._is_latency_objective else "J"
        spent, saved = f"{format_rounded(cost, 3)} {unit}", f"{format_rounded(saving, 2)} {unit}"
        return (
            f"another round would not pay: {trial_count} schedules cost about {spent} and are "
            f"expected to save {saved} in {self.expected_calls:,.0f} calls"
        )

    def _credit_pending_batch(self) -> None:
        """Compare the improvement that was predicted of the last batch with the one achieved."""
        if self._pending is None:
            return
        predicted, before = self._pending
        self._pending = None
        self._predicted_total += predicted
        # If all timed schedules failed on the device since, nothing was achieved.
        if self.task.timed_candidates:
            self._achieved_total += max(math.log(before / self.task.incumbent.scores.min()), 0.0)

    def _sum_expected_improvements(self, batch: Sequence[Population]) -> float:
        """Sum the expected improvements of a batch, each relative to the best score."""
        together = sum(batch[1:], batch[0])
        return float(np.exp(-self.task.acquisition.score(together)).sum())

    def _estimate_saving(self, predicted_improvement: float) -> float:
        """Estimate the joules (or seconds) that a batch saves over the life of the kernel."""
        scaled = predicted_improvement * self._achieved_total / self._predicted_total
        return scaled * self._get_best_call_cost() * self.expected_calls

    @property
    def _is_latency_objective(self) -> bool:
        return self.task.options.objective == "latency"

    def _get_best_call_cost(self) -> float:
        """Joules (or seconds) of one call of the best schedule so far."""
        best = self.task.incumbent.best
        return best.latency_s if self._is_latency_objective else best.energy_j

    def _estimate_round_cost(self, trial_count: int) -> float:
        """Estimate the device joules (or seconds) of so many more trials."""
        spent, trials = self.task.measurer.cost, len(self.task.candidates)
        wait_s = self.settings.compile_wait_s
        if self._is_latency_objective:
            return trial_count * (spent.timing_s / trials + wait_s)
        return trial_count * (
            (spent.joules - (self._energy_before_j or 0.0)) / trials + wait_s * spent.idle_w
        )
