"""The stopping rule of `effort`: a round must save more than it costs.

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

from ekc.search.data.defaults import STOPPING
from ekc.search.data.population import Population
from ekc.search.loop.task import ScheduleTask
from ekc.tables import format_rounded


@dataclass
class StoppingRule:
    """Stops one search before a batch that is expected to cost more than it saves."""

    task: ScheduleTask
    predicted_total: float = STOPPING.initial_credit
    """Sum of predicted improvements of measured rounds, the initial credit included."""
    achieved_total: float = STOPPING.initial_credit
    """Sum of the improvements that they achieved."""
    _energy_before_j: float | None = None
    """Joules used before the first round, for the baseline."""
    _predicted: float = 0.0
    """Predicted improvement of the next round."""
    _pending: tuple[float, float] | None = None
    """(predicted improvement, best score before) of the batch that was accepted last."""

    def note_start(self) -> None:
        """Note that the first round comes now: what was measured before is no cost of a round."""
        self._energy_before_j = self.task.measurer.cost.joules

    def predict_improvement(self, batch: Sequence[Population]) -> float | None:
        """Predict the relative improvement by a batch, scaled by the accuracy of earlier predictions. None
        until the models are fitted."""
        if self._energy_before_j is None:
            self.note_start()
        self._credit_pending_batch()
        if not (self.task.learner.latency_model.is_ready and self.task.timed_candidates):
            return None
        together = sum(batch[1:], batch[0])
        self._predicted = float(np.exp(-self.task.acquisition.score(together)).sum())
        return self._predicted * self.achieved_total / self.predicted_total

    def _credit_pending_batch(self) -> None:
        """Compare the improvement that was predicted of the last batch with the one achieved."""
        if self._pending is None:
            return
        predicted, before = self._pending
        self._pending = None
        self.predicted_total += predicted
        # If all timed schedules failed on the device since, nothing was achieved.
        if self.task.timed_candidates:
            self.achieved_total += max(math.log(before / self.task.incumbent.scores.min()), 0.0)

    @property
    def unit(self) -> str:
        """Unit of savings and costs."""
        return "s" if self.task.options.objective == "latency" else "J"

    def get_best_call_cost(self) -> float:
        """Joules (or seconds) of one call of the best schedule so far."""
        best = self.task.incumbent.best
        return best.latency_s if self.unit == "s" else best.energy_j

    def estimate_cost(self, trial_count: int) -> float:
        """Estimate the device joules (or seconds) of so many more trials."""
        spent, trials = self.task.measurer.cost, len(self.task.candidates)
        wait_s = STOPPING.compile_wait_s
        if self.unit == "s":
            return trial_count * (spent.timing_s / trials + wait_s)
        return trial_count * (
            (spent.joules - (self._energy_before_j or 0.0)) / trials + wait_s * spent.idle_w
        )

    def should_stop(self, expected_calls: float, batch: Sequence[Population], trial_count: int) -> str | None:
        """Return why the batch would cost more than it saves in the calls of the kernel over its life; None
        if it may be measured."""
        improvement = self.predict_improvement(batch)
        if improvement is None:
            return None
        saving = improvement * self.get_best_call_cost() * expected_calls
        cost = self.estimate_cost(trial_count)
        if saving >= cost:
            self._pending = self._predicted, float(self.task.incumbent.scores.min())
            return None
        spent = format_rounded(cost, 3)
        return (
            f"another round would not pay: {trial_count} schedules cost about {spent} {self.unit} and are "
            f"expected to save {format_rounded(saving, 2)} {self.unit} in {expected_calls:,.0f} calls"
        )
