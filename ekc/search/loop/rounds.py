"""The search loop, round by round: breed genomes, score them, pick a diverse batch, measure it, learn.

The loop sees a space of genomes and a task, and neither an operator nor a device. The same loop searches
schedules (`run.py`) and tables of measurements (`replay/replay.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from ekc.search.cost_model.acquisition import Acquisition, PredictedFigures
from ekc.search.data.defaults import BREEDING, PARALLEL_ROUNDS, BreedingSettings, RoundSettings
from ekc.search.data.population import Population
from ekc.search.loop.breeding import Breeder

CandidateT = TypeVar("CandidateT")
"""Type of the objects that a task measures: one for each genome that is picked."""
StoppingCheck = Callable[[Sequence[Population], int], str | None]
"""Why a search should end before a batch of so many trials; None if it should go on."""


class SearchTask(Protocol[CandidateT]):
    """The measurements of a search, and the acquisition function that learns from them."""

    @property
    def acquisition(self) -> Acquisition:
        """The acquisition function that genomes are bred and picked by."""

    def make_candidate(self, population: Population, row: int, round_number: int) -> CandidateT | None:
        """Make the candidate of one genome; None if the same was tried before."""

    def measure(self, candidates: Sequence[CandidateT], round_number: int) -> list[float]:
        """Measure candidates and learn from them. Returns the figure to minimise of each, NaN for a failure;
        fewer figures if time runs out."""

    def can_continue(self) -> bool:
        """Whether there is time for another round."""


@dataclass(frozen=True)
class PlannedRound(Generic[CandidateT]):
    """A round whose candidates were picked and are not measured yet."""

    candidates: Sequence[CandidateT]
    genomes: Sequence[Population]
    """Genomes of the last candidates; those before were given by the caller."""

    @property
    def trial_count(self) -> int:
        """Candidates of the round."""
        return len(self.candidates)


@dataclass
class SearchLoop(Generic[CandidateT]):
    """One search: `run` does all rounds, or a scheduler calls `plan_round` and `measure_round` in turn."""

    breeder: Breeder
    task: SearchTask[CandidateT]
    settings: RoundSettings = PARALLEL_ROUNDS
    stop_reason: str = ""
    """Why the search ended before all trials were used, unless time ran out."""
    round_number: int = 0
    """Number of the current round, from 1."""
    trial_count: int = 0
    """Candidates measured so far."""
    _parents: Population | None = None
    _tried_keys: set[int] = field(default_factory=set)
    _figures: list[float] = field(default_factory=list)
    _genomes: list[Population] = field(default_factory=list)
    _random_count: int = 0

    def run(
        self, trials: int, start: Sequence[CandidateT] = (), should_stop: StoppingCheck | None = None
    ) -> None:
        """Run rounds until the trials or the time are used. The first round measures `start` first."""
        start = list(start[:trials])
        while self.trial_count < trials and self.task.can_continue():
            size = compute_round_size(self.round_number + 1, self.trial_count, trials, self.settings)
            planned = self.plan_round(size, start)
            if planned is None:
                return
            reason = should_stop(planned.genomes, planned.trial_count) if should_stop else None
            if reason is not None:
                self.stop_reason = reason
                return
            self.measure_round(planned)
            start = []

    def plan_round(self, size: int, start: Sequence[CandidateT] = ()) -> PlannedRound[CandidateT] | None:
        """Breed genomes and pick `size` candidates, those of `start` among them. None if there is nothing
        left to try."""
        self.round_number += 1
        parents, _ = self.breeder.evolve(self._parents, self.task.acquisition.score)
        self._parents = parents
        candidates, genomes = self._pick_batch(parents, max(size - len(start), 0))
        if not candidates and not start:
            # If no genome was legal, the breeder has the reasons.
            self.stop_reason = "every schedule of the space has been tried" if len(parents) else ""
            return None
        return PlannedRound([*start, *candidates], genomes)

    def measure_round(self, planned: PlannedRound[CandidateT]) -> None:
        """Measure a planned round, and select the parents of the next."""
        figures = self.task.measure(planned.candidates, self.round_number)
        self.trial_count += len(figures)
        self._record_results(planned.genomes, figures[planned.trial_count - len(planned.genomes) :])
        assert self._parents is not None
        self._parents = self.breeder.select_parents(self._select_elites(), self._parents)

    def _pick_batch(self, population: Population, count: int) -> tuple[list[CandidateT], list[Population]]:
        """Pick a diverse batch: equal shares by each predicted figure, and some genomes at random; more of
        these where fewer bred ones are untried."""
        random_count = self._count_random(count)
        figures = self.task.acquisition.predict_figures(population) if len(population) else ()
        picked: list[tuple[CandidateT, Population]] = []
        for i, predicted in enumerate(figures or (None,)):
            left = count - random_count - len(picked)
            share = -(-left // (max(len(figures), 1) - i))
            picked += self._pick_untried(population, predicted, share, picked)
        if missing := count - len(picked):
            picked += self._pick_untried(self.breeder.sample(4 * missing), None, missing, picked)
        return [p for p, _ in picked], [g for _, g in picked]

    def _count_random(self, count: int) -> int:
        """Count the random genomes of a batch, so that their share of all trials so far is as set."""
        if self.round_number == 1:
            return round(self.settings.first_round_random_share * count)
        due = int(self.settings.random_share * (self.trial_count + count)) - self._random_count
        self._random_count += max(due, 0)
        return min(max(due, 0), count)

    def _pick_untried(
        self,
        population: Population,
        figures: PredictedFigures | None,
        count: int,
        picked: Sequence[tuple[CandidateT, Population]],
    ) -> list[tuple[CandidateT, Population]]:
        """Pick `count` untried genomes besides those picked: by predicted figures, or else in order."""
        keys = self.breeder.space.compute_keys(population)
        order = np.arange(len(keys)) if figures is None else np.argsort(figures.score(), kind="stable")
        new: list[tuple[CandidateT, Population]] = []
        while (wanted := count - len(new)) > 0:
            order = order[~np.isin(keys[order], list(self._tried_keys))]
            if not len(order):
                break
            rows = order[:wanted]
            if figures is not None:
                listed = order[: self.settings.shortlist_per_trial * wanted]
                batch = [g for _, g in (*picked, *new)]
                rows = self.task.acquisition.pick(population, figures, listed, wanted, batch)
            for row in rows.tolist():
                self._tried_keys.add(int(keys[row]))
                candidate = self.task.make_candidate(population, row, self.round_number)
                if candidate is not None:
                    new.append((candidate, population[[row]]))
        return new

    def _record_results(self, genomes: Sequence[Population], figures: Sequence[float]) -> None:
        for genome, figure in zip(genomes, figures, strict=False):
            if math.isfinite(figure):
                self._genomes.append(genome)
                self._figures.append(figure)

    def _select_elites(self) -> Population:
        """Select the measured genomes of the best figures."""
        best = np.argsort(self._figures, kind="stable")[: self.breeder.settings.elite_count].tolist()
        return sum((self._genomes[i] for i in best), self.breeder.make_empty())


def compute_round_size(
    round_number: int, trials_done: int, trials: int, settings: RoundSettings = PARALLEL_ROUNDS
) -> int:
    """Compute the trials of one round of a search that has used `trials_done` of its `trials`."""
    first = settings.first_round_share, settings.min_first_round, settings.max_first_round
    later = settings.round_share, settings.min_trials, settings.max_trials
    share, fewest, most = first if round_number == 1 else later
    return min(max(math.ceil(share * trials), fewest), most, trials - trials_done)


def compute_population_size(trials: int, settings: BreedingSettings = BREEDING) -> int:
    """Compute the number of genomes bred at a time in a search of so many trials."""
    return min(settings.max_population, max(settings.min_population, settings.population_per_trial * trials))
