"""The stop rule: a round must be expected to save more than it costs.

The models promise an improvement for each schedule of the batch that would come next (`belief.improvement`).
Promises are optimistic, for the search picks what promises most; so their sum is scaled by what promises
were worth in the rounds before: improvement had over improvement promised, beginning with 10 % of each.
Dry rounds thus make the next one look poorer, about as 10 % over their number. What is left, times the
energy of the best schedule and the calls that the effort expects, is the saving. The cost is what the
trials so far took on the device, per trial, and the idling of the board while kernels are compiled.

No clock is read: the same seed stops at the same trial, resumed or not, with any number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.search.cost_model.acquisition import Acquisition
from ekc.search.data.candidate import Candidate
from ekc.search.data.population import Population
from ekc.search.loop.task import ScheduleTask

INITIAL_CREDIT = 0.1
"""Improvement that the models are credited with, as promised and as had, before any round."""
COMPILE_WAIT_S = 0.5
"""Seconds that a board waits for one compile: a round figure, and no measured one, so as to be repeatable."""


@dataclass
class StoppingTask:
    """A task that ends its rounds when the next batch would not pay; what `rounds.py` asks for."""

    task: ScheduleTask
    expected_calls: float
    stop_reason: str = ""
    """Why, once it has."""
    _batch_genomes: list[Population] = field(default_factory=list)
    _energy_before_j: float | None = None
    """Joules spent before the first round, on the baseline."""
    _expected_improvement: float = INITIAL_CREDIT
    _actual_improvement: float = INITIAL_CREDIT

    def make_candidate(self, population: Population, row: int, round_number: int) -> Candidate | None:
        """As the task does; its genome is remembered, to ask what is promised of it."""
        made = self.task.make_candidate(population, row, round_number)
        if made is not None:
            self._batch_genomes.append(population[[row]])
        return made

    def score_population(self, population: Population) -> NDArray[np.float64]:
        """As the task does."""
        return self.task.score_population(population)

    def compute_acquisitions(self, population: Population) -> tuple[Acquisition, ...]:
        """As the task does."""
        return self.task.compute_acquisitions(population)

    def score_tie_breaks(self, population: Population) -> NDArray[np.float64]:
        """As the task does."""
        return self.task.score_tie_breaks(population)

    def predict_correlation(self, population: Population) -> NDArray[np.float64]:
        """As the task does."""
        return self.task.predict_correlation(population)

    def can_continue(self) -> bool:
        """Whether there is to be another round."""
        return not self.stop_reason and self.task.can_continue()

    def measure(self, candidates: Sequence[Candidate], round_number: int) -> list[float]:
        """Measure and learn, unless that would not pay."""
        batch, self._batch_genomes = self._batch_genomes, []
        if self._energy_before_j is None:
            self._energy_before_j = self.task.measurer.cost.joules
        if not (self.task.learner.latency_model.is_ready and self.task.timed_candidates):
            return self.task.measure(candidates, round_number)
        promised, before = self._sum_expected_improvements(batch), self.task.incumbent.scores.min()
        self._decide_stop(promised, len(candidates))
        if self.stop_reason:
            return []
        figures = self.task.measure(candidates, round_number)
        self._expected_improvement += promised
        # Where the device has failed all it had timed, nothing was had.
        if self.task.timed_candidates:
            self._actual_improvement += max(math.log(before / self.task.incumbent.scores.min()), 0.0)
        return figures

    def _sum_expected_improvements(self, batch: Sequence[Population]) -> float:
        """Sum of the expected improvements of a batch, each a share of the best score."""
        together = sum(batch[1:], batch[0])
        return float(np.exp(-self.task.score_population(together)).sum())

    def _decide_stop(self, expected_improvement: float, count: int) -> None:
        share = expected_improvement * self._actual_improvement / self._expected_improvement
        saving = share * self._get_best_call_cost() * self.expected_calls
        cost = self._estimate_round_cost(count)
        if saving >= cost:
            return
        unit = "s" if self._is_latency_objective else "J"
        self.stop_reason = (
            f"another round would not pay: {count} schedules cost about {cost:.3g} {unit} and are "
            f"expected to save {saving:.2g} {unit} in {self.expected_calls:,.0f} calls"
        )

    @property
    def _is_latency_objective(self) -> bool:
        return self.task.options.objective == "latency"

    def _get_best_call_cost(self) -> float:
        """Joules (or seconds) of a call of the best schedule so far."""
        best = self.task.incumbent.best
        return best.latency_s if self._is_latency_objective else best.energy_j

    def _estimate_round_cost(self, count: int) -> float:
        """Device joules (or seconds) that so many more trials take."""
        spent, trials = self.task.measurer.cost, len(self.task.candidates)
        if self._is_latency_objective:
            return count * (spent.timing_s / trials + COMPILE_WAIT_S)
        return count * (
            (spent.joules - (self._energy_before_j or 0.0)) / trials + COMPILE_WAIT_S * spent.idle_w
        )
