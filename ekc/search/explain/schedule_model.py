"""What is expected of schedules that nobody measured: by physics alone, and by what the search learns with,
once it has seen those that were. And how good both are on schedules that they have not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.devices.base import Peaks
from ekc.search.candidate import Candidate
from ekc.search.models.analysed import Analysed, Figures, analysed
from ekc.search.models.belief import Belief
from ekc.search.models.trees import MIN_ROWS, spearman
from ekc.search.records.evidence import Evidence

Array = NDArray[np.float64]

FOLDS = 5
FEWEST_METERED = MIN_ROWS * FOLDS // (FOLDS - 1)
"""Each fold must leave the model as many rows as it needs to say more than the prior, or the score would be
that of another model."""


@dataclass(frozen=True, eq=False)
class Expected:
    """Logs of seconds, and of watts, of some schedules."""

    latency: Array
    power: Array

    @property
    def energy(self) -> Array:
        """Logs of joules."""
        return self.latency + self.power


class _Line:
    """One figure as a line over what physics says of it, and the belief of the search on what that misses.

    Every row weighs alike. A tuning run cares for good schedules, and weighs rows and trusts the prior
    accordingly; an account must hold for bad ones, where physics may be far off.
    """

    def __init__(self, rows: NDArray[np.float32], physics: Array, logs: Array, seed: int) -> None:
        self._slope = _slope(physics, logs)
        self._level = float(np.median(logs - self._slope * physics))
        self._belief = Belief(seed)
        self._belief.learn(rows, np.exp(self._at(physics)), np.exp(logs), merits=np.ones(len(logs)))

    def _at(self, physics: Array) -> Array:
        return self._level + self._slope * physics

    def expect(self, rows: NDArray[np.float32], physics: Array) -> Array:
        """The log of the figure."""
        return self._belief.expect(rows, np.exp(self._at(physics)))[0]


def _slope(physics: Array, logs: Array) -> float:
    """How much of what physics says shows in the figures: 0 to 1."""
    apart = physics - physics.mean()
    spread = float((apart**2).mean())
    return float(np.clip((apart * logs).mean() / spread, 0.0, 1.0)) if spread else 0.0


class ScheduleModel:
    """Latency and power, learned from what is on file. Deterministic for the same rows and seed."""

    def __init__(self, known: Sequence[Candidate], peaks: Peaks, seed: int) -> None:
        self._peaks = peaks
        metered = [c for c in known if c.metered]
        self._latency = _Line(
            np.stack([c.row for c in known]),
            np.log([c.prior_latency_s for c in known]),
            np.log([c.latency_s for c in known]),
            seed,
        )
        self._power = _Line(
            np.stack([c.row for c in metered]),
            np.log([c.prior_power_w for c in metered]),
            np.log([c.power_w for c in metered]),
            seed,
        )

    def expect(self, figures: Figures) -> Expected:
        """Of schedules by the figures of their analysis alone."""
        return self.of(analysed(figures, self._peaks))

    def of(self, seen: Analysed) -> Expected:
        """The same, analysed."""
        physics = by_prior(seen)
        return Expected(
            self._latency.expect(seen.features, physics.latency),
            self._power.expect(seen.features, physics.power),
        )


def by_prior(seen: Analysed) -> Expected:
    """Counted work and the ceilings of the device."""
    return Expected(np.log(seen.latency_s), np.log(seen.power_w))


@dataclass(frozen=True)
class Score:
    """Predictions of schedules that were not learned from, against what was measured of them."""

    rank: float | None
    """Spearman; None where all are alike."""
    error: float
    """Median absolute relative error."""


@dataclass(frozen=True)
class Quality:
    """How good the model is: held-out schedules in `FOLDS` folds, no schedule in two."""

    energy: Score
    latency: Score
    power: Score
    energy_by_prior: Score
    """The prior times one factor, the median of the rows learned from; as the next two."""
    latency_by_prior: Score
    power_by_prior: Score


def quality(evidence: Evidence, peaks: Peaks, seed: int) -> Quality:
    """Of models that learn from `evidence`, at least `FEWEST_METERED` of it metered."""
    fold = _folds(evidence.metered, seed)
    model, prior = (Expected(np.zeros(len(fold)), np.zeros(len(fold))) for _ in range(2))
    seen = analysed(evidence.figures, peaks)
    physics = by_prior(seen)
    latency = np.log([c.latency_s for c in evidence.candidates])
    power = np.log([c.power_w if c.metered else np.nan for c in evidence.candidates])
    for n in range(FOLDS):
        held = fold == n
        known, asked = evidence.rows(~held), evidence.rows(held)
        found = ScheduleModel(known[0], peaks, seed).expect(asked[1])
        model.latency[held], model.power[held] = found.latency, found.power
        prior.latency[held] = physics.latency[held] + np.median((latency - physics.latency)[~held])
        prior.power[held] = physics.power[held] + np.nanmedian((power - physics.power)[~held])
    metered = evidence.metered
    return Quality(
        *(
            score
            for said in (model, prior)
            for score in (
                _score(said.energy[metered], (latency + power)[metered]),
                _score(said.latency, latency),
                _score(said.power[metered], power[metered]),
            )
        )
    )


def _folds(metered: NDArray[np.bool_], seed: int) -> NDArray[np.int64]:
    """A fold for each row, the metered ones dealt first: each fold has its even share of them."""
    random = np.random.default_rng(seed)
    dealt = np.concatenate([random.permutation(np.flatnonzero(which)) for which in (metered, ~metered)])
    fold = np.empty(len(metered), dtype=np.int64)
    fold[dealt] = np.arange(len(metered)) % FOLDS
    return fold


def _score(said: Array, measured: Array) -> Score:
    return Score(spearman(said, measured), float(np.median(np.abs(np.expm1(said - measured)))))
