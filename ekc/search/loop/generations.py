"""The search itself: breed, rank by what is believed, pick a diverse batch, measure, learn; round by round.

It sees a space of genomes and a task, never an operator, a kernel or a device: the same code searches
schedules (`run.py`) and recordings of other people's kernels (`replay.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ekc.search.cost_model.acquisition import Acquisition
from ekc.search.data.population import Population
from ekc.search.loop.breeding import POPULATION, Breeder

CandidateT = TypeVar("CandidateT")
"""What a task makes of a genome to measure it."""

FIRST_ROUND_SHARE, MIN_FIRST_ROUND, MAX_FIRST_ROUND = 1 / 8, 4, 64
"""Size of the first round, which nothing measured guides, as a share of the trials, and its bounds."""
FIRST_ROUND_RANDOM_SHARE = 0.5
"""Share of the first round drawn at random."""
POPULATION_PER_TRIAL = 32
"""A short run breeds smaller populations: it could not use what a large one finds."""
SHORTLIST_PER_TRIAL = 32
"""Genomes that a batch is picked from, for each that is wanted."""
ELITE_COUNT = 12
"""Measured genomes that each round breeds from, beside the models' favourites."""


@dataclass(frozen=True)
class RoundPolicy:
    """How the trials after the first round are dealt out."""

    round_share: float
    """Size of a round as a share of all trials: small, so that each trial knows of nearly all before it."""
    min_trials: int
    max_trials: int
    """Bounds of that size."""
    random_share: float
    """Share drawn at random, so that models see more than their own favourites."""
    closing_share: float = 0.0
    """Share of all trials, the last, that goes to what may do the same as the best with less. None does where
    time runs out, or another round would not pay."""


PARALLEL_POLICY = RoundPolicy(
    round_share=1 / 32, min_trials=4, max_trials=32, random_share=0.15, closing_share=1 / 16
)
"""For what is prepared in parallel, as schedules are compiled."""


class SearchTask(Protocol[CandidateT]):
    """What is searched for: it knows the models and measures."""

    def make_candidate(self, population: Population, row: int, round_number: int) -> CandidateT | None:
        """One genome, ready to be measured in round `number`; None where the same was tried before."""

    def score_population(self, population: Population) -> NDArray[np.float64]:
        """What genomes are bred by: lower is better."""

    def compute_acquisitions(self, population: Population) -> tuple[Acquisition, ...]:
        """What a batch is picked by, in even shares; the first is the promise. None: as they come."""

    def score_tie_breaks(self, population: Population) -> NDArray[np.float64]:
        """What genomes are bred and picked by in the closing rounds: lower is better. First those believed
        level with the best, and of these what takes least of the device."""

    def predict_correlation(self, population: Population) -> NDArray[np.float64]:
        """Of what measurements will say and nobody knows yet, pair by pair."""

    def measure(self, candidates: Sequence[CandidateT], round_number: int) -> list[float]:
        """Measure and learn. The figure that genomes are bred from, lower is better, NaN for what
        failed; shorter than `fresh` where time ran out."""

    def can_continue(self) -> bool:
        """Whether there is time for another round."""


@dataclass
class SearchLoop(Generic[CandidateT]):
    """One search."""

    breeder: Breeder
    task: SearchTask[CandidateT]
    trials: int
    policy: RoundPolicy = PARALLEL_POLICY
    stop_reason: str = ""
    """Why the rounds ended before the trials were used, if not for want of time."""
    round_number: int = 0
    """Of the round under way."""
    _tried_keys: set[int] = field(default_factory=set)
    _figures: list[float] = field(default_factory=list)
    _genomes: list[Population] = field(default_factory=list)
    _trial_count: int = 0
    _random_count: int = 0

    def run(self, start: Sequence[CandidateT] = ()) -> None:
        """Rounds until the trials or the time are used; `given` is measured first."""
        parents: Population | None = None
        start = list(start[: self.trials])
        while self._trial_count < self.trials and self.task.can_continue():
            self.round_number += 1
            closing = self._trial_count >= compute_closing_start(self.trials, self.policy)
            parents, _ = self.breeder.evolve(
                parents, self.task.score_tie_breaks if closing else self.task.score_population
            )
            wanted = max(
                compute_round_size(self.round_number, self._trial_count, self.trials, self.policy)
                - len(start),
                0,
            )
            fresh, genomes = ([], []) if closing else self._pick_batch(parents, wanted)
            if not fresh and wanted:
                fresh, genomes = self._pick_best(parents, wanted)
            if not fresh and not start:
                # Where nothing is legal the breeder counted why.
                self.stop_reason = "every schedule of the space has been tried" if len(parents) else ""
                return
            figures = self.task.measure([*start, *fresh], self.round_number)
            self._trial_count += len(figures)
            self._record_results(genomes, figures[len(start) :])
            start = []
            parents = self._collect_elites() + parents[: self.breeder.population_size // 2]

    def _pick_batch(self, population: Population, count: int) -> tuple[list[CandidateT], list[Population]]:
        """A diverse batch: from every ranking alike, some at random."""
        wander = self._count_random(count)
        rankings = (self.task.compute_acquisitions(population) if len(population) else ()) or (None,)
        picked: list[tuple[CandidateT, Population]] = []
        for i, ranking in enumerate(rankings):
            amount = -(-(count - wander - len(picked)) // (len(rankings) - i))
            picked += self._pick_untried(population, ranking, amount, picked)
        strangers = self.breeder.sample(4 * wander) if wander else population[:0]
        picked += self._pick_untried(strangers, None, wander, picked)
        return [p for p, _ in picked], [g for _, g in picked]

    def _pick_best(self, population: Population, count: int) -> tuple[list[CandidateT], list[Population]]:
        """As they were bred, best first; where nothing new was bred, strangers."""
        picked = self._pick_untried(population, None, count, ())
        if short := count - len(picked):
            picked += self._pick_untried(self.breeder.sample(4 * short), None, short, picked)
        return [p for p, _ in picked], [g for _, g in picked]

    def _count_random(self, count: int) -> int:
        """How many of a batch are random: the share of all trials so far, in whole numbers."""
        if self.round_number == 1:
            return round(FIRST_ROUND_RANDOM_SHARE * count)
        due = int(self.policy.random_share * (self._trial_count + count)) - self._random_count
        self._random_count += max(due, 0)
        return min(max(due, 0), count)

    def _pick_untried(
        self,
        population: Population,
        acquisition: Acquisition | None,
        count: int,
        picked: Sequence[tuple[CandidateT, Population]],
    ) -> list[tuple[CandidateT, Population]]:
        """The best `count` genomes that make something not tried yet, beside those picked already; without a
        ranking the first."""
        keys = self.breeder.space.compute_keys(population)
        order = (
            np.arange(len(keys)) if acquisition is None else np.argsort(acquisition.score(), kind="stable")
        )
        taken: list[tuple[CandidateT, Population]] = []
        while (wanted := count - len(taken)) > 0:
            order = order[~np.isin(keys[order], list(self._tried_keys))]
            if not len(order):
                break
            rows = order[:wanted]
            if acquisition is not None:
                listed = order[: SHORTLIST_PER_TRIAL * wanted]
                batch = sum((g for _, g in (*picked, *taken)), population[listed])
                rows = listed[acquisition[listed].pick_batch(wanted, self.task.predict_correlation(batch))]
            for row in rows.tolist():
                self._tried_keys.add(int(keys[row]))
                made = self.task.make_candidate(population, row, self.round_number)
                if made is not None:
                    taken.append((made, population[[row]]))
        return taken

    def _record_results(self, genomes: Sequence[Population], figures: Sequence[float]) -> None:
        for genome, figure in zip(genomes, figures, strict=False):
            if math.isfinite(figure):
                self._genomes.append(genome)
                self._figures.append(figure)

    def _collect_elites(self) -> Population:
        """The genomes that measured best and many neighbours: the next round breeds from facts too."""
        best = np.argsort(self._figures, kind="stable")[:ELITE_COUNT].tolist()
        rows = sum((self._genomes[i] for i in best), self.breeder.make_empty())
        return self.breeder.add_neighbours(rows, self.breeder.population_size // 4)


def compute_round_size(
    round_number: int, trials_done: int, trials: int, policy: RoundPolicy = PARALLEL_POLICY
) -> int:
    """Trials of round `number` of a search, when `done` of `trials` are used."""
    share, fewest, most = (
        (FIRST_ROUND_SHARE, MIN_FIRST_ROUND, MAX_FIRST_ROUND)
        if round_number == 1
        else (policy.round_share, policy.min_trials, policy.max_trials)
    )
    # A round ends where the closing ones begin.
    left = compute_closing_start(trials, policy) - trials_done
    return min(max(math.ceil(share * trials), fewest), most, left if left > 0 else trials - trials_done)


def compute_closing_start(trials: int, policy: RoundPolicy) -> int:
    """The trials after which the closing rounds begin."""
    return trials - int(policy.closing_share * trials)


def compute_population_size(trials: int) -> int:
    """Genomes bred at a time in a search of so many trials."""
    return min(POPULATION, max(512, POPULATION_PER_TRIAL * trials))
