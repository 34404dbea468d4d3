"""Timelines of a job's stretches: iterations with jitter and drift, evaluations, pauses, aperiodic work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ekc.governor.samples import Values
from ekc.governor.simulation.card import SimulatedCard
from ekc.governor.simulation.simulated_job import JobStage, SimulatedJob

ITERATION_JITTER = 0.006
"""Standard deviation of the log length of an iteration (estimate)."""
HOST_JITTER = 0.15
"""Standard deviation of the log length of an input wait (estimate)."""
EVALUATION_INTERVAL_S = (150.0, 600.0)
"""Range of the seconds between two evaluations."""
EVALUATION_RANGE_S = (15.0, 50.0)
"""Range of the length of an evaluation in seconds."""


@dataclass(frozen=True)
class Timeline:
    """Stretches in order, as in `SimulatedJob`; arrays of one length."""

    stage_indices: NDArray[np.int32]
    seconds: Values
    iteration: NDArray[np.int32]
    regime: NDArray[np.int16]

    def with_regime(self, number: int) -> Timeline:
        """The timeline as another true phase."""
        return replace(self, regime=np.full_like(self.regime, number))

    def split(self, share: float) -> tuple[Timeline, Timeline]:
        """Split in two between two iterations."""
        place = int(np.searchsorted(self.iteration, int(share * self.iteration[-1]) or 1))
        first, rest = (
            Timeline(self.stage_indices[p], self.seconds[p], self.iteration[p], self.regime[p])
            for p in (slice(None, place), slice(place, None))
        )
        return first, replace(rest, iteration=rest.iteration - rest.iteration[0])

    @staticmethod
    def concatenate(parts: Sequence[Timeline]) -> Timeline:
        """Timelines one after the other."""
        begins = np.concatenate([[0], np.cumsum([p.iteration[-1] + 1 for p in parts])])
        iterations = [p.iteration + b for p, b in zip(parts, begins[:-1], strict=True)]
        return Timeline(
            np.concatenate([p.stage_indices for p in parts]),
            np.concatenate([p.seconds for p in parts]),
            np.concatenate(iterations).astype(np.int32),
            np.concatenate([p.regime for p in parts]),
        )

    def make_job(
        self, name: str, kind: str, card: SimulatedCard, stages: tuple[JobStage, ...], swing_w: float
    ) -> SimulatedJob:
        """The timeline as a job on a card."""
        stretches = self.stage_indices, self.seconds, self.iteration, self.regime
        return SimulatedJob(name, kind, card, stages, *stretches, swing_w)


def _make_timeline(stage_indices: NDArray[np.integer], seconds: Values, per_iteration: int) -> Timeline:
    iteration = (np.arange(len(stage_indices)) // per_iteration).astype(np.int32)
    regime = np.zeros(len(stage_indices), np.int16)
    return Timeline(stage_indices.astype(np.int32), seconds, iteration, regime)


def make_pause(seconds: float) -> Timeline:
    """A pause; it is stage 0 of every job."""
    return _make_timeline(np.zeros(1, int), np.array([seconds]), 1)


def sample_iterations(
    rng: np.random.Generator,
    stages: NDArray[np.int_],
    stage_seconds: Values,
    seconds: float,
    drift: float = 0.0,
) -> Timeline:
    """Iterations of the same stages, the host first; `drift`: relative change of their length by the end."""
    count = max(2, round(seconds / stage_seconds.sum()))
    jitter = np.exp(ITERATION_JITTER * rng.standard_normal((count, 1)) * np.ones(len(stages)))
    jitter[:, 0] = np.exp(HOST_JITTER * rng.standard_normal(count))
    grown = 1 + drift * np.linspace(-0.5, 0.5, count)[:, None]
    spans = stage_seconds[None, :] * jitter * grown
    return _make_timeline(np.tile(stages, count), spans.ravel(), len(stages))


def insert_evaluations(
    rng: np.random.Generator, timeline: Timeline, stages: NDArray[np.int_], stage_seconds: Values
) -> Timeline:
    """The timeline with evaluations inserted at even intervals."""
    per_iteration = int(np.flatnonzero(timeline.iteration)[0])
    seconds = timeline.seconds.reshape(-1, per_iteration)
    every = max(1, round(rng.uniform(*EVALUATION_INTERVAL_S) / seconds.sum(1).mean()))
    length = float(rng.uniform(*EVALUATION_RANGE_S))
    parts = []
    for begin in range(0, len(seconds), every):
        part = slice(begin * per_iteration, (begin + every) * per_iteration)
        parts.append(_make_timeline(timeline.stage_indices[part], timeline.seconds[part], per_iteration))
        held_out = sample_iterations(rng, stages, stage_seconds, length)
        # Hooks count training steps only, so an evaluation adds none.
        parts.append(replace(held_out, iteration=np.zeros_like(held_out.iteration)))
    return Timeline.concatenate(parts[:-1])


def sample_aperiodic(
    rng: np.random.Generator, stages: NDArray[np.int_], stage_seconds: Values, seconds: float
) -> Timeline:
    """Stages in random order and of random length."""
    count = max(8, round(seconds / stage_seconds.sum()))
    order = np.argsort(rng.random((count, len(stages))), axis=1)
    spread = np.exp(0.6 * rng.standard_normal((count, len(stages))))
    spans = (stage_seconds[None, :] * spread) * np.exp(0.3 * rng.standard_normal((count, 1)))
    return _make_timeline(
        np.take_along_axis(np.tile(stages, (count, 1)), order, axis=1).ravel(),
        np.take_along_axis(spans, order, axis=1).ravel(),
        len(stages),
    )
