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

from ekc.search.candidate import Candidate
from ekc.search.models.promise import Promise
from ekc.search.population import Population
from ekc.search.task import ScheduleTask

CREDIT = 0.1
"""Improvement that the models are credited with, as promised and as had, before any round."""
COMPILE_S = 0.5
"""Seconds that a board waits for one compile: a round figure, and no measured one, so as to be repeatable."""


@dataclass
class WhilePaying:
    """A task that ends its rounds when the next batch would not pay; what `rounds.py` asks for."""

    task: ScheduleTask
    calls: float
    stopped: str = ""
    """Why, once it has."""
    _batch: list[Population] = field(default_factory=list)
    _begun_j: float | None = None
    """Joules spent before the first round, on the baseline."""
    _promised: float = CREDIT
    _had: float = CREDIT

    def make(self, population: Population, row: int, number: int) -> Candidate | None:
        """As the task does; its genome is remembered, to ask what is promised of it."""
        made = self.task.make(population, row, number)
        if made is not None:
            self._batch.append(population[[row]])
        return made

    def promise(self, population: Population) -> NDArray[np.float64]:
        """As the task does."""
        return self.task.promise(population)

    def rankings(self, population: Population) -> tuple[Promise, ...]:
        """As the task does."""
        return self.task.rankings(population)

    def lean(self, population: Population) -> NDArray[np.float64]:
        """As the task does."""
        return self.task.lean(population)

    def correlation(self, population: Population) -> NDArray[np.float64]:
        """As the task does."""
        return self.task.correlation(population)

    def on_time(self) -> bool:
        """Whether there is to be another round."""
        return not self.stopped and self.task.on_time()

    def measure(self, fresh: Sequence[Candidate], number: int) -> list[float]:
        """Measure and learn, unless that would not pay."""
        batch, self._batch = self._batch, []
        if self._begun_j is None:
            self._begun_j = self.task.bench.spent.joules
        if not (self.task.learner.latency.ready and self.task.working):
            return self.task.measure(fresh, number)
        promised, before = self._promise(batch), self.task.standing.scores.min()
        self._decide(promised, len(fresh))
        if self.stopped:
            return []
        figures = self.task.measure(fresh, number)
        self._promised += promised
        # Where the device has failed all it had timed, nothing was had.
        if self.task.working:
            self._had += max(math.log(before / self.task.standing.scores.min()), 0.0)
        return figures

    def _promise(self, batch: Sequence[Population]) -> float:
        """Sum of the expected improvements of a batch, each a share of the best score."""
        together = sum(batch[1:], batch[0])
        return float(np.exp(-self.task.promise(together)).sum())

    def _decide(self, promised: float, count: int) -> None:
        share = promised * self._had / self._promised
        saving = share * self._best() * self.calls
        cost = self._cost(count)
        if saving >= cost:
            return
        unit = "s" if self._in_seconds else "J"
        self.stopped = (
            f"another round would not pay: {count} schedules cost about {cost:.3g} {unit} and are "
            f"expected to save {saving:.2g} {unit} in {self.calls:,.0f} calls"
        )

    @property
    def _in_seconds(self) -> bool:
        return self.task.wish.objective == "latency"

    def _best(self) -> float:
        """Joules (or seconds) of a call of the best schedule so far."""
        best = self.task.standing.best
        return best.latency_s if self._in_seconds else best.energy_j

    def _cost(self, count: int) -> float:
        """Device joules (or seconds) that so many more trials take."""
        spent, trials = self.task.bench.spent, len(self.task.candidates)
        if self._in_seconds:
            return count * (spent.timing_s / trials + COMPILE_S)
        return count * ((spent.joules - (self._begun_j or 0.0)) / trials + COMPILE_S * spent.idle_w)
