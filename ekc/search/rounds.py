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

from ekc.search.breeding import POPULATION, Breeder
from ekc.search.models.promise import Promise
from ekc.search.population import Population

Trying = TypeVar("Trying")
"""What a task makes of a genome to measure it."""

FIRST_SHARE, FIRST_FEWEST, FIRST_MOST = 1 / 8, 4, 64
"""Size of the first round, which nothing measured guides, as a share of the trials, and its bounds."""
FIRST_RANDOM = 0.5
"""Share of the first round drawn at random."""
BRED_PER_TRIAL = 32
"""A short run breeds smaller populations: it could not use what a large one finds."""
SHORTLIST = 32
"""Genomes that a batch is picked from, for each that is wanted."""
PROVEN = 12
"""Measured genomes that each round breeds from, beside the models' favourites."""


@dataclass(frozen=True)
class Pace:
    """How the trials after the first round are dealt out."""

    share: float
    """Size of a round as a share of all trials: small, so that each trial knows of nearly all before it."""
    fewest: int
    most: int
    """Bounds of that size."""
    random: float
    """Share drawn at random, so that models see more than their own favourites."""
    closing: float = 0.0
    """Share of all trials, the last, that goes to what may do the same as the best with less. None does where
    time runs out, or another round would not pay."""


SIDE_BY_SIDE = Pace(share=1 / 32, fewest=4, most=32, random=0.15, closing=1 / 16)
"""For what is prepared in parallel, as schedules are compiled."""


class Task(Protocol[Trying]):
    """What is searched for: it knows the models and measures."""

    def make(self, population: Population, row: int, number: int) -> Trying | None:
        """One genome, ready to be measured in round `number`; None where the same was tried before."""

    def promise(self, population: Population) -> NDArray[np.float64]:
        """What genomes are bred by: lower is better."""

    def rankings(self, population: Population) -> tuple[Promise, ...]:
        """What a batch is picked by, in even shares; the first is the promise. None: as they come."""

    def lean(self, population: Population) -> NDArray[np.float64]:
        """What genomes are bred and picked by in the closing rounds: lower is better. First those believed
        level with the best, and of these what takes least of the device."""

    def correlation(self, population: Population) -> NDArray[np.float64]:
        """Of what measurements will say and nobody knows yet, pair by pair."""

    def measure(self, fresh: Sequence[Trying], number: int) -> list[float]:
        """Measure and learn. The figure that genomes are bred from, lower is better, NaN for what
        failed; shorter than `fresh` where time ran out."""

    def on_time(self) -> bool:
        """Whether there is time for another round."""


@dataclass
class Rounds(Generic[Trying]):
    """One search."""

    breeder: Breeder
    task: Task[Trying]
    trials: int
    pace: Pace = SIDE_BY_SIDE
    stopped: str = ""
    """Why the rounds ended before the trials were used, if not for want of time."""
    number: int = 0
    """Of the round under way."""
    _seen: set[int] = field(default_factory=set)
    _figures: list[float] = field(default_factory=list)
    _genomes: list[Population] = field(default_factory=list)
    _done: int = 0
    _random: int = 0

    def run(self, given: Sequence[Trying] = ()) -> None:
        """Rounds until the trials or the time are used; `given` is measured first."""
        parents: Population | None = None
        given = list(given[: self.trials])
        while self._done < self.trials and self.task.on_time():
            self.number += 1
            closing = self._done >= closing_begins(self.trials, self.pace)
            parents, _ = self.breeder.evolve(parents, self.task.lean if closing else self.task.promise)
            wanted = max(round_size(self.number, self._done, self.trials, self.pace) - len(given), 0)
            fresh, genomes = ([], []) if closing else self._pick(parents, wanted)
            if not fresh and wanted:
                fresh, genomes = self._best(parents, wanted)
            if not fresh and not given:
                # Where nothing is legal the breeder counted why.
                self.stopped = "every schedule of the space has been tried" if len(parents) else ""
                return
            figures = self.task.measure([*given, *fresh], self.number)
            self._done += len(figures)
            self._keep(genomes, figures[len(given) :])
            given = []
            parents = self._proven() + parents[: self.breeder.size // 2]

    def _pick(self, population: Population, count: int) -> tuple[list[Trying], list[Population]]:
        """A diverse batch: from every ranking alike, some at random."""
        wander = self._wander(count)
        rankings = (self.task.rankings(population) if len(population) else ()) or (None,)
        picked: list[tuple[Trying, Population]] = []
        for i, ranking in enumerate(rankings):
            amount = -(-(count - wander - len(picked)) // (len(rankings) - i))
            picked += self._take(population, ranking, amount, picked)
        strangers = self.breeder.draw(4 * wander) if wander else population[:0]
        picked += self._take(strangers, None, wander, picked)
        return [p for p, _ in picked], [g for _, g in picked]

    def _best(self, population: Population, count: int) -> tuple[list[Trying], list[Population]]:
        """As they were bred, best first; where nothing new was bred, strangers."""
        picked = self._take(population, None, count, ())
        if short := count - len(picked):
            picked += self._take(self.breeder.draw(4 * short), None, short, picked)
        return [p for p, _ in picked], [g for _, g in picked]

    def _wander(self, count: int) -> int:
        """How many of a batch are random: the share of all trials so far, in whole numbers."""
        if self.number == 1:
            return round(FIRST_RANDOM * count)
        due = int(self.pace.random * (self._done + count)) - self._random
        self._random += max(due, 0)
        return min(max(due, 0), count)

    def _take(
        self,
        population: Population,
        ranking: Promise | None,
        count: int,
        picked: Sequence[tuple[Trying, Population]],
    ) -> list[tuple[Trying, Population]]:
        """The best `count` genomes that make something not tried yet, beside those picked already; without a
        ranking the first."""
        keys = self.breeder.space.keys(population)
        order = np.arange(len(keys)) if ranking is None else np.argsort(ranking.urgency(), kind="stable")
        taken: list[tuple[Trying, Population]] = []
        while (wanted := count - len(taken)) > 0:
            order = order[~np.isin(keys[order], list(self._seen))]
            if not len(order):
                break
            rows = order[:wanted]
            if ranking is not None:
                listed = order[: SHORTLIST * wanted]
                batch = sum((g for _, g in (*picked, *taken)), population[listed])
                rows = listed[ranking[listed].one_by_one(wanted, self.task.correlation(batch))]
            for row in rows.tolist():
                self._seen.add(int(keys[row]))
                made = self.task.make(population, row, self.number)
                if made is not None:
                    taken.append((made, population[[row]]))
        return taken

    def _keep(self, genomes: Sequence[Population], figures: Sequence[float]) -> None:
        for genome, figure in zip(genomes, figures, strict=False):
            if math.isfinite(figure):
                self._genomes.append(genome)
                self._figures.append(figure)

    def _proven(self) -> Population:
        """The genomes that measured best and many neighbours: the next round breeds from facts too."""
        best = np.argsort(self._figures, kind="stable")[:PROVEN].tolist()
        rows = sum((self._genomes[i] for i in best), self.breeder.nobody())
        return self.breeder.around(rows, self.breeder.size // 4)


def round_size(number: int, done: int, trials: int, pace: Pace = SIDE_BY_SIDE) -> int:
    """Trials of round `number` of a search, when `done` of `trials` are used."""
    share, fewest, most = (
        (FIRST_SHARE, FIRST_FEWEST, FIRST_MOST) if number == 1 else (pace.share, pace.fewest, pace.most)
    )
    # A round ends where the closing ones begin.
    left = closing_begins(trials, pace) - done
    return min(max(math.ceil(share * trials), fewest), most, left if left > 0 else trials - done)


def closing_begins(trials: int, pace: Pace) -> int:
    """The trials after which the closing rounds begin."""
    return trials - int(pace.closing * trials)


def population_size(trials: int) -> int:
    """Genomes bred at a time in a search of so many trials."""
    return min(POPULATION, max(512, BRED_PER_TRIAL * trials))
