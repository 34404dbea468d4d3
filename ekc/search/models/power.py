"""What is believed of a kernel's power: a line over the prior, and trees and a process on what that misses.

How much of the prior's differences shows is learned, from a half on: where it explains nothing the line turns
flat, and the belief is that of constant power. The model sees how much faster or slower than its prior a
kernel is: the same work in less time draws more. A kernel that was throttled by the power cap while it was
timed needs no model: it draws what capped kernels draw. Of others like it that says that they would draw as
much at least, and it costs no metering.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.devices.base import POWER_CAP, Peaks
from ekc.search.candidate import Candidate
from ekc.search.models import prior
from ekc.search.models.belief import UNSURE, Belief
from ekc.search.models.features import BALANCE
from ekc.search.models.trees import spearman

Array = NDArray[np.float64]

SHARPNESS = 2.0
"""A kernel of twice the least energy weighs 2**-sharpness in the line, as in the trees."""
SLOPE, DOUBT = 0.5, 0.003
"""What the slope of the line is drawn to, and the variance of the log prior that weighs as much. Recorded
kernels have 0.75 (`benchmarks/prior_accuracy.py`); drawn to 0.7 a run where power is constant takes three
times as many meterings to notice, and ranks hardly better elsewhere."""
TREE_SHARE = 0.25
"""Few kernels are metered, and trees want many."""
FEWEST_JUDGED = 4
QUARANTINE = 0.5
"""Rank correlation below which a model that ranks no better than the line is not believed."""
LEAST_SPREAD = 0.02
"""Of the log of watts: two kernels that look alike draw about as different."""


@dataclass
class PowerModel:
    """Log watts of kernels, and how sure. Deterministic for given rows and seed."""

    seed: int
    peaks: Peaks
    constant: bool = False
    """Believe in nothing but the median: the trivial predictor that a model must beat."""
    quarantined: bool = False
    """The line rules alone."""
    _known: list[Candidate] = field(default_factory=list)
    _throttled: list[Candidate] = field(default_factory=list)
    """Timed and, metered or not, held at the power cap."""

    def __post_init__(self) -> None:
        self._slope, self._level, self._left = 1.0, 0.0, UNSURE
        self._capped, self._capped_spread = np.log(self.peaks.board_power_w), LEAST_SPREAD
        self._belief = Belief(self.seed, TREE_SHARE)

    @property
    def rows(self) -> int:
        """How many kernels it has learned from."""
        return len(self._known)

    @property
    def median(self) -> float:
        """The median of the watts seen: the trivial predictor."""
        return float(np.median([c.power_w for c in self._known])) if self._known else float("nan")

    def learn(self, metered: Sequence[Candidate], timed: Sequence[Candidate] = ()) -> None:
        """Learn from kernels just metered, those of little energy most, and from which of all `timed` were
        throttled."""
        self._known += metered
        throttled = [c for c in timed if _is_capped(c)]
        if not self._known or not (metered or len(throttled) != len(self._throttled)):
            return
        self._throttled = throttled
        capped = np.log([c.power_w for c in self._known if _is_capped(c)])
        if len(capped):
            self._capped = float(np.median(capped))
            self._capped_spread = max(float(capped.std()), LEAST_SPREAD / len(capped) ** 0.5)
        if self.constant:
            self._draw(self._known)
            return
        free = [c for c in self._known if not _is_capped(c)]
        known = free if len(free) >= FEWEST_JUDGED else self._known
        self._draw(known)
        at_cap = self._believed_below(throttled)
        if at_cap:
            self._draw(known, at_cap)
        self._fit(known, at_cap)

    def _believed_below(self, throttled: Sequence[Candidate]) -> list[Candidate]:
        """Those of which less is believed. What the cap holds back would draw more, nobody knows how much: it
        says nothing where that is believed already."""
        if not throttled:
            return []
        below = self._line(self._inputs(throttled)[1]) < self._capped
        return [c for c, is_below in zip(throttled, below, strict=True) if is_below]

    def _draw(self, known: Sequence[Candidate], at_cap: Sequence[Candidate] = ()) -> None:
        """The line and what it misses, of kernels metered and of others that draw what the cap allows."""
        _, priors, watts, joules = self._figures(known, at_cap)
        weights = np.ones(len(watts)) if self.constant else (joules.min() / joules) ** SHARPNESS
        self._slope = 0.0 if self.constant else _slope(np.log(priors), np.log(watts), weights)
        left = np.log(watts) - self._slope * np.log(priors)
        self._level = float(np.median(left) if self.constant else np.average(left, weights=weights))
        self._left = max(float(np.average((left - self._level) ** 2, weights=weights)) ** 0.5, LEAST_SPREAD)

    def _fit(self, known: Sequence[Candidate], at_cap: Sequence[Candidate]) -> None:
        """Trees and process on what the line misses."""
        rows, priors, watts, joules = self._figures(known, at_cap)
        self._belief = Belief(self.seed, TREE_SHARE)
        self._belief.learn(rows, np.exp(self._line(priors)), watts, merits=joules)

    def _figures(
        self, known: Sequence[Candidate], at_cap: Sequence[Candidate]
    ) -> tuple[NDArray[np.float32], Array, Array, Array]:
        """(features, priors, watts, joules) of kernels metered and of others at the cap."""
        rows, priors = self._inputs([*known, *at_cap])
        watts = np.array([c.power_w for c in known] + [np.exp(self._capped)] * len(at_cap))
        return rows, priors, watts, watts * [c.latency_s for c in (*known, *at_cap)]

    @property
    def ready(self) -> bool:
        """Whether there is a model beside the line."""
        return self._belief.ready

    def expect_of(self, timed: Sequence[Candidate], model: bool | None = None) -> tuple[Array, Array]:
        """(mean, spread) of the log watts of kernels whose latency is known; what the model says, or the
        line, instead of what rules."""
        mean, spread = self._expect(*self._inputs(timed), not self.quarantined if model is None else model)
        capped = np.array([_is_capped(c) for c in timed]) & (not self.constant)
        return np.where(capped, self._capped, mean), np.where(capped, self._capped_spread, spread)

    def expect(
        self, rows: NDArray[np.float32], pace: Array, priors: Array, matter: NDArray[np.bool_]
    ) -> tuple[Array, Array]:
        """The same of kernels nobody timed; `pace`: log of the expected latency over its prior. Of those that
        do not `matter` by the line."""
        rows, priors = self._paced(rows, pace, priors)
        mean, spread = self._expect(rows, priors, False)
        if self.ready and not self.quarantined:
            mean[matter], spread[matter] = self._expect(rows[matter], priors[matter], True)
        return mean, spread

    def _inputs(self, timed: Sequence[Candidate]) -> tuple[NDArray[np.float32], Array]:
        pace = np.log([c.latency_s / c.prior_latency_s for c in timed])
        rows, priors = np.stack([c.row for c in timed]), np.array([c.prior_power_w for c in timed])
        return self._paced(rows, pace, priors)

    def _paced(
        self, rows: NDArray[np.float32], pace: Array, priors: Array
    ) -> tuple[NDArray[np.float32], Array]:
        """Features with the pace, and watts expected at that pace."""
        standby = prior.standby(rows[:, BALANCE], self.peaks)
        return np.column_stack([rows, pace]).astype(np.float32), prior.paced(priors, pace, standby)

    def _expect(self, rows: NDArray[np.float32], priors: Array, model: bool) -> tuple[Array, Array]:
        line = self._line(priors)
        if self.ready and model:
            mean, spread = self._belief.expect(rows, np.exp(line))
        else:
            mean = line
            spread = np.full(len(priors), self._left if self.rows >= FEWEST_JUDGED else UNSURE)
        # No board draws more than its cap.
        return np.minimum(mean, max(np.log(self.peaks.board_power_w), self._capped)), spread

    def judge(self, model: Array, line: Array, measured: Array) -> None:
        """Energies predicted by the model and by the line before they were measured: they set the
        quarantine, for a model that ranks badly and no better than the line."""
        rank = spearman(model, measured)
        if rank is not None and len(measured) >= FEWEST_JUDGED:
            self.quarantined = rank < QUARANTINE and rank <= (spearman(line, measured) or 0.0)

    def _line(self, priors: Array) -> Array:
        return self._slope * np.log(priors) + self._level


def _slope(expected: Array, logs: Array, weights: Array) -> float:
    """How much of the prior's differences shows in the figures: 0 to 1."""
    apart = expected - np.average(expected, weights=weights)
    together = float(np.average(apart * logs, weights=weights))
    spread = float(np.average(apart**2, weights=weights))
    return float(np.clip((together + SLOPE * DOUBT) / (spread + DOUBT), 0.0, 1.0))


def _is_capped(timed: Candidate) -> bool:
    return POWER_CAP in timed.timings[-1].conditions.throttle
