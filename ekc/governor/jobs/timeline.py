"""The order of a job's stretches: iterations with jitter and drift, evaluations, pauses, no beat at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ekc.governor.jobs.card import Card
from ekc.governor.jobs.job import Job, Values
from ekc.governor.jobs.stage import Stage

JITTER = 0.006
"""Iteration from iteration, one sigma of the log (estimate)."""
HOST_JITTER = 0.15
"""The same for input waits."""
EVALUATE_EVERY_S = (150.0, 600.0)
EVALUATE_S = (15.0, 50.0)


@dataclass(frozen=True)
class Timeline:
    """Stretches in order; arrays of one length."""

    stage: NDArray[np.int32]
    seconds: Values
    iteration: NDArray[np.int32]
    regime: NDArray[np.int16]

    def of_regime(self, number: int) -> Timeline:
        """The same as another true phase."""
        return replace(self, regime=np.full_like(self.regime, number))

    def cut(self, share: float) -> tuple[Timeline, Timeline]:
        """In two, between two iterations."""
        place = int(np.searchsorted(self.iteration, int(share * self.iteration[-1]) or 1))
        first, rest = slice(None, place), slice(place, None)
        parts = [(self.stage[p], self.seconds[p], self.iteration[p], self.regime[p]) for p in (first, rest)]
        late = parts[1][2] - parts[1][2][0]
        return Timeline(*parts[0]), Timeline(*parts[1][:2], late, parts[1][3])

    @staticmethod
    def joined(parts: Sequence[Timeline]) -> Timeline:
        """One after the other."""
        begins = np.concatenate([[0], np.cumsum([p.iteration[-1] + 1 for p in parts])])
        return Timeline(
            np.concatenate([p.stage for p in parts]),
            np.concatenate([p.seconds for p in parts]),
            np.concatenate([p.iteration + b for p, b in zip(parts, begins[:-1], strict=True)]).astype(
                np.int32
            ),
            np.concatenate([p.regime for p in parts]),
        )

    def job(self, name: str, kind: str, card: Card, stages: tuple[Stage, ...], swing_w: float) -> Job:
        """As a job on a card."""
        return Job(name, kind, card, stages, self.stage, self.seconds, self.iteration, self.regime, swing_w)


def _timeline(stage: NDArray[np.integer], seconds: Values, per_iteration: int) -> Timeline:
    iteration = np.arange(len(stage)) // per_iteration
    return Timeline(
        stage.astype(np.int32), seconds, iteration.astype(np.int32), np.zeros(len(stage), np.int16)
    )


def pause(seconds: float) -> Timeline:
    """The job stands still; stage 0 of every job is that."""
    return _timeline(np.zeros(1, int), np.array([seconds]), 1)


def iterations(
    rng: np.random.Generator, stages: NDArray[np.int_], lasts: Values, seconds: float, drift: float = 0.0
) -> Timeline:
    """The same stages again and again, the host first; `drift`: how much longer iterations get to the end."""
    count = max(2, round(seconds / lasts.sum()))
    jitter = np.exp(JITTER * rng.standard_normal((count, 1)) * np.ones(len(stages)))
    jitter[:, 0] = np.exp(HOST_JITTER * rng.standard_normal(count))
    grown = 1 + drift * np.linspace(-0.5, 0.5, count)[:, None]
    spans = lasts[None, :] * jitter * grown
    return _timeline(np.tile(stages, count), spans.ravel(), len(stages))


def with_evaluation(
    rng: np.random.Generator, plain: Timeline, stages: NDArray[np.int_], lasts: Values
) -> Timeline:
    """Every so many iterations, a stretch of other ones."""
    per_iteration = int(np.flatnonzero(plain.iteration)[0])
    whole = plain.seconds.reshape(-1, per_iteration)
    every = max(1, round(rng.uniform(*EVALUATE_EVERY_S) / whole.sum(1).mean()))
    length = float(rng.uniform(*EVALUATE_S))
    parts = []
    for begin in range(0, len(whole), every):
        part = slice(begin * per_iteration, (begin + every) * per_iteration)
        parts.append(_timeline(plain.stage[part], plain.seconds[part], per_iteration))
        held_out = iterations(rng, stages, lasts, length)
        # Hooks count training steps: an evaluation is none, whatever it lasts.
        parts.append(replace(held_out, iteration=np.zeros_like(held_out.iteration)))
    return Timeline.joined(parts[:-1])


def aperiodic(rng: np.random.Generator, stages: NDArray[np.int_], lasts: Values, seconds: float) -> Timeline:
    """The same kinds of work in any order, each piece of any length."""
    count = max(8, round(seconds / lasts.sum()))
    order = np.argsort(rng.random((count, len(stages))), axis=1)
    spread = np.exp(0.6 * rng.standard_normal((count, len(stages))))
    spans = (lasts[None, :] * spread) * np.exp(0.3 * rng.standard_normal((count, 1)))
    return _timeline(
        np.take_along_axis(np.tile(stages, (count, 1)), order, axis=1).ravel(),
        np.take_along_axis(spans, order, axis=1).ravel(),
        len(stages),
    )
