"""What a run learns: a latency model, a power model, and how many kernels still need the meter.

Predictions are written down before a round is measured and judged against its figures afterwards,
then the models are fitted afresh. Everything a round taught is kept as a `ModelCard`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ekc.devices.base import Peaks
from ekc.search import prior
from ekc.search.belief import Belief
from ekc.search.candidate import Candidate
from ekc.search.features import features
from ekc.search.metering import MeteringShare, choose
from ekc.search.model import ResidualModel, spearman
from ekc.search.result import ModelCard

NEAR = 1.1
"""Kernels up to this much slower than the slowdown allows are metered too: they teach, and noise moves."""


@dataclass
class Learner:
    """The models of one run."""

    peaks: Peaks
    seed: int
    max_slowdown: float
    share: MeteringShare = field(default_factory=MeteringShare)
    cards: list[ModelCard] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.latency, self.power = Belief(self.seed), ResidualModel(self.seed)

    def expect(
        self, figures: Mapping[str, NDArray[np.float64]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """(log seconds, spread of that, watts) expected of analysed genomes."""
        rows = features(figures)
        mean, spread = self.latency.expect(rows, prior.latency(figures, self.peaks))
        return mean, spread, self.power.predict(rows, prior.power(figures, self.peaks))

    def learn_latency(self, timed: list[Candidate]) -> None:
        """Learn from the latencies of a round."""
        if timed:
            priors = np.array([c.prior_latency_s for c in timed])
            self.latency.learn(_rows(timed), priors, np.array([c.latency_s for c in timed]))

    def learn_energy(self, working: list[Candidate], number: int, meter: Callable[[Candidate], bool]) -> None:
        """Meter a share of the low-latency set, judge what was expected of it, then fit.

        `meter` measures one candidate and says whether it worked.
        """
        fast = self._fast(working)
        if fast:
            self._meter_some(fast, number, meter)
            self.power.fit()
        self.predict_all(working)

    def _fast(self, working: list[Candidate]) -> list[Candidate]:
        """The low-latency set, not yet metered; the first time all, so that slow ones teach too."""
        if not working:
            return []
        limit = min(c.latency_s for c in working) * (1 + self.max_slowdown) * NEAR
        return [c for c in working if not c.metered and (c.latency_s <= limit or not self.cards)]

    def _meter_some(self, fast: list[Candidate], number: int, meter: Callable[[Candidate], bool]) -> None:
        rows, priors = _rows(fast), np.array([c.prior_power_w for c in fast])
        latency = np.array([c.latency_s for c in fast])
        believed = self.power.predict(rows, priors) * latency
        trees = self.power.predict(rows, priors, believe=True) * latency
        constant = self.power.median * latency
        measured = [i for i in choose(self.share.share, believed, rows) if meter(fast[i])]
        energy = np.array([fast[i].energy_j for i in measured])
        learned = self.power.rows
        rank = self.power.judge(trees[measured], energy) if learned else None
        if learned:
            self.share.update(believed[measured], energy)
        self.cards.append(
            ModelCard(
                round=number,
                rows=learned,
                rank_correlation=rank,
                error=_error(believed[measured], energy) if learned else None,
                constant_power_error=_error(constant[measured], energy) if learned else None,
                latency_rank=spearman(latency[measured], energy),
                share=len(measured) / len(fast),
                quarantined=self.power.quarantined,
            )
        )
        for i in measured:
            c = fast[i]
            self.power.add(c.row, c.prior_power_w, c.power_w, c.energy_j)

    def predict_all(self, working: list[Candidate]) -> None:
        """What the rest carries: predictions, told apart from figures by `Candidate.metered`."""
        if not working:
            return
        power = self.power.predict(_rows(working), np.array([c.prior_power_w for c in working]))
        for c, watts in zip(working, power.tolist(), strict=True):
            c.predicted_power_w = watts


def _rows(candidates: list[Candidate]) -> NDArray[np.float32]:
    return np.stack([c.row for c in candidates])


def _error(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> float | None:
    """Median absolute relative error."""
    if not len(measured):
        return None
    return float(np.median(np.abs(predicted - measured) / measured))
