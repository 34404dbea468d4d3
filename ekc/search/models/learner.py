"""What a run learns: a latency model, a power model, and how many kernels still need the meter.

Predictions are written down before a kernel is metered and judged against its figures afterwards,
then the models are fitted afresh. Everything that metering taught is kept as a `ModelCard`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.devices.base import Peaks
from ekc.ir.limits import Limits
from ekc.search.candidate import Candidate
from ekc.search.method import OURS, Method
from ekc.search.models.analysed import Analysed
from ekc.search.models.belief import Belief
from ekc.search.models.foresight import Foresight, Judged
from ekc.search.models.metering import BEGIN, NEW_IN_FINALS, START, WINDOW, MeteringShare, choose
from ekc.search.models.power import PowerModel
from ekc.search.models.spills import Spills, spilled
from ekc.search.models.trees import spearman
from ekc.search.result import ModelCard

Array = NDArray[np.float64]
Meter = Callable[[Candidate], bool]
"""Measures one candidate and says whether it worked."""

NEAR = 1.1
"""Kernels up to this much slower than the slowdown allows are metered too: they teach, and noise moves."""
HARDLY = 2.0
"""So many spreads below what is believed, a latency hardly is."""
LATENCY_BAD = 0.3
"""Residuals this much above the median are of kernels that hit what the prior does not know (bank conflicts,
waits): how hard teaches little of those that did not."""


@dataclass
class Learner:
    """The models of one run."""

    peaks: Peaks
    limits: Limits
    seed: int
    max_slowdown: float
    method: Method = OURS
    cards: list[ModelCard] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    """Every kernel metered since the first ones: what was expected of it, and what it was."""
    _timed: int = 0
    """Kernels that a share of metering was counted for."""

    def __post_init__(self) -> None:
        fixed = self.method.metered
        share = START if fixed is None else fixed
        self.share = MeteringShare(share, fixed is None, reserved=NEW_IN_FINALS * (1 - share))
        self.latency = Belief(self.seed, bad=LATENCY_BAD)
        self.spills = Spills(self.limits, self.seed)
        self.power = PowerModel(self.seed, self.peaks, self.method.power == "constant")

    def expect(self, seen: Analysed, limit_s: float = np.inf) -> tuple[Array, Array, Array, Array]:
        """(log seconds, spread of that, log watts, spread of that) expected of analysed genomes. How slow the
        slow are is bent (`LATENCY_BAD`), and their watts are those of that pace; of those that will hardly
        take less than `limit_s` as the line has them (`HARDLY`)."""
        mean, spread = self.latency.expect(seen.features, seen.latency_s)
        pace = mean - np.log(seen.latency_s)
        matter = mean - HARDLY * spread <= np.log(limit_s)
        return mean, spread, *self.power.expect(seen.features, pace, seen.power_w, matter)

    def learn_latency(self, timed: list[Candidate]) -> None:
        """Learn what spilled in a round, and from the latencies of what did not: how slow a kernel is that
        spilled says nothing of those that do not."""
        told = [c for c in timed if c.resources]
        if told:
            self.spills.learn(np.stack([c.row for c in told]), [c.resources for c in told])
        fit = [c for c in timed if not spilled(c.resources)]
        if fit:
            rows, priors = np.stack([c.row for c in fit]), np.array([c.prior_latency_s for c in fit])
            self.latency.learn(rows, priors, np.array([c.latency_s for c in fit]))

    def learn_energy(self, working: list[Candidate], number: int, meter: Meter) -> None:
        """Meter a share of what was timed since, judge what was expected of it, then fit."""
        waiting = self._waiting(working)
        fewest = 0 if self.power.rows else BEGIN
        count, curious = self.share.wanted(max(len(working) - self._timed, 0), len(waiting), fewest)
        self._timed = max(len(working), self._timed)
        done: list[int] = []
        if count:
            foresight = Foresight.of(waiting, self.power)
            picked = choose(
                count, curious, foresight.mean, foresight.spread, self._least(working), foresight.rows
            )
            done = [i for i in picked if meter(waiting[i])]
            self._judge(foresight, done, number)
        self.power.learn([waiting[i] for i in done], working)
        self.predict_all(working)

    def _fast(self, working: list[Candidate], near: float) -> list[Candidate]:
        """The low-latency set."""
        limit = min((c.latency_s for c in working), default=0.0) * (1 + self.max_slowdown) * near
        return [c for c in working if c.latency_s <= limit]

    def _waiting(self, working: list[Candidate]) -> list[Candidate]:
        """The low-latency set, not yet metered; the first time all, so that slow ones teach too."""
        anyone = not self.power.rows or self.method.metered == 1
        return [c for c in (working if anyone else self._fast(working, NEAR)) if not c.metered]

    def _least(self, working: list[Candidate]) -> float:
        """Log of the least energy metered of those that may win."""
        metered = [c.energy_j for c in self._fast(working, 1.0) if c.metered]
        return float(np.log(min(metered))) if metered else np.inf

    def _judge(self, foresight: Foresight, done: Sequence[int], number: int) -> None:
        """Hold the predictions against the figures of the kernels `done`."""
        learned = self.power.rows
        if learned:
            self.judged += foresight.judged(done)
            recent = self.judged[-WINDOW:]
            self.share.update(_column(recent, "believed_j"), _column(recent, "measured_j"), len(done))
            modelled = [j for j in recent if np.isfinite(j.model_j)]
            self.power.judge(*(_column(modelled, name) for name in ("model_j", "line_j", "measured_j")))
        self.cards.append(self._card(number, learned))

    def _card(self, number: int, learned: int) -> ModelCard:
        """What the last predictions were worth."""
        recent = self.judged[-WINDOW:]
        measured = _column(recent, "measured_j")
        return ModelCard(
            round=number,
            rows=learned,
            rank_correlation=spearman(_column(recent, "believed_j"), measured),
            error=_error(_column(recent, "believed_j"), measured),
            constant_power_error=_error(_column(recent, "constant_j"), measured),
            latency_rank=spearman(_column(recent, "latency_s"), measured),
            share=self.share.share,
            quarantined=self.power.quarantined,
        )

    def predict_all(self, working: list[Candidate]) -> None:
        """What the rest carries: predictions, told apart from figures by `Candidate.metered`."""
        if not working:
            return
        watts = np.exp(self.power.expect_of(working)[0])
        for c, predicted in zip(working, watts.tolist(), strict=True):
            c.predicted_power_w = predicted


def _column(judged: Sequence[Judged], name: str) -> Array:
    return np.array([getattr(j, name) for j in judged], dtype=np.float64)


def _error(predicted: Array, measured: Array) -> float | None:
    """Median absolute relative error."""
    if not len(measured):
        return None
    return float(np.median(np.abs(predicted - measured) / measured))
