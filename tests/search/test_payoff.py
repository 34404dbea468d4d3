"""The stop rule by hand: what is promised, what promises were worth, and what a round costs."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ekc.search.data.cost import MeasurementCost
from ekc.search.data.population import Population
from ekc.search.loop.stopping import COMPILE_WAIT_S, INITIAL_CREDIT, StoppingTask

IDLE_W, TRIAL_J, ENERGY_J = 50.0, 75.0, 0.5
COST_J = TRIAL_J + COMPILE_WAIT_S * IDLE_W
"""Of one more schedule: 100 J."""


class Stub:
    """A task whose batches promise and bring what the test says."""

    def __init__(self, promise: float, gains: list[float], objective: str = "energy") -> None:
        self.expected_improvement, self.gains, self.options = (
            promise,
            gains,
            SimpleNamespace(objective=objective),
        )
        self.learner = SimpleNamespace(latency_model=SimpleNamespace(is_ready=False))
        self.measurer = SimpleNamespace(cost=MeasurementCost(joules=1e6, idle_w=IDLE_W))
        self.candidates: list[Any] = []
        self.best_score = 1.0

    timed_candidates = property(lambda self: self.candidates)

    @property
    def incumbent(self) -> Any:
        return SimpleNamespace(scores=np.array([self.best_score]), best=self.candidates[0])

    def make_candidate(self, population: Population, row: int, round_number: int) -> Any:
        return SimpleNamespace(latency_s=0.25, energy_j=ENERGY_J)

    def score_population(self, population: Population) -> Any:
        return np.full(len(population), -math.log(self.expected_improvement / len(population)))

    def measure(self, candidates: list[Any], round_number: int) -> list[float]:
        self.candidates += candidates
        self.measurer.cost.joules += TRIAL_J * len(candidates)
        self.measurer.cost.timing_s += 0.5 * len(candidates)
        self.best_score *= math.exp(-self.gains.pop(0)) if self.learner.latency_model.is_ready else 1.0
        self.learner.latency_model.is_ready = True
        return [0.25] * len(candidates)

    def can_continue(self) -> bool:
        return True


def rounds(stub: Stub, calls: float, most: int = 50) -> tuple[int, str]:
    """Rounds of two schedules until the rule stops them; how many were measured after the first, and why."""
    paying = StoppingTask(stub, calls)  # type: ignore[arg-type]
    population = Population(np.zeros(2, dtype=np.int64), np.zeros((2, 1), dtype=np.int64))
    for number in range(1, most + 2):
        if not paying.can_continue():
            return number - 3, paying.stop_reason
        paying.measure(
            [made for row in (0, 1) if (made := paying.make_candidate(population, row, number))], number
        )
    return most, ""


def dry_rounds(promise: float, calls: float) -> int:
    """The least n at which promise x credit / (credit + n x promise) no longer pays for two schedules."""
    n = 0
    while promise * INITIAL_CREDIT / (INITIAL_CREDIT + n * promise) * ENERGY_J * calls >= 2 * COST_J:
        n += 1
    return n


@pytest.mark.parametrize("promise", [0.3, 0.02])
@pytest.mark.parametrize("calls", [1e4, 5e4])
def test_dry_rounds_make_the_next_one_look_poorer(promise: float, calls: float) -> None:
    expected = dry_rounds(promise, calls)
    measured, why = rounds(Stub(promise, [0.0] * 60), calls)
    assert measured == expected
    assert why.startswith("another round would not pay: 2 schedules cost about 200 J")
    assert why.endswith(f"in {calls:,.0f} calls")


def test_promises_that_are_kept_are_believed() -> None:
    dry, _ = rounds(Stub(0.2, [0.0] * 60), 1e4)
    kept, why = rounds(Stub(0.2, [0.2] * 60), 1e4)
    assert dry < 10
    assert (kept, why) == (50, "")


def test_latency_is_weighed_in_seconds() -> None:
    # One more round of two: 2 x (0.5 s of timing + COMPILE_S) = 2 s, against 0.2 x 0.25 s a call.
    assert rounds(Stub(0.2, [0.0] * 60, "latency"), 39.0)[0] == 0
    measured, why = rounds(Stub(0.2, [0.0] * 60, "latency"), 41.0)
    assert measured == 1
    assert "cost about 2 s and are expected to save" in why
