"""The stopping rule on hand-made predictions and costs, and tuning runs that it ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ekc.devices.device import Metering
from ekc.devices.simulated.device import SimulatedDevice
from ekc.errors import DeviceError
from ekc.search.data.defaults import STOPPING
from ekc.search.data.options import EFFORTS, Effort
from ekc.search.data.population import Population
from ekc.search.data.result import MeasurementCost
from ekc.search.loop.stopping import StoppingRule
from tests.search.helpers import rows, tune, winner

IDLE_W, TRIAL_J, ENERGY_J = 50.0, 75.0, 0.5
COST_J = TRIAL_J + STOPPING.compile_wait_s * IDLE_W
"""Cost of one more schedule: 100 J."""


class Stub:
    """A task with predicted improvements and achieved gains as given."""

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
        self.acquisition = SimpleNamespace(score=self._score)

    timed_candidates = property(lambda self: self.candidates)

    @property
    def incumbent(self) -> Any:
        return SimpleNamespace(scores=np.array([self.best_score]), best=self.candidates[0])

    def _score(self, population: Population) -> Any:
        return np.full(len(population), -math.log(self.expected_improvement / len(population)))

    def measure(self, count: int) -> None:
        self.candidates += [SimpleNamespace(latency_s=0.25, energy_j=ENERGY_J)] * count
        self.measurer.cost.joules += TRIAL_J * count
        self.measurer.cost.timing_s += 0.5 * count
        self.best_score *= math.exp(-self.gains.pop(0)) if self.learner.latency_model.is_ready else 1.0
        self.learner.latency_model.is_ready = True


def rounds(stub: Stub, calls: float, most: int = 50) -> tuple[int, str]:
    """Measure rounds of two schedules until the rule stops. Returns the rounds after the first, and why."""
    rule = StoppingRule(stub)  # type: ignore[arg-type]
    batch = [Population(np.zeros(1, dtype=np.int64), np.zeros((1, 1), dtype=np.int64))] * 2
    for number in range(most + 1):
        if reason := rule.should_stop(calls, batch, 2):
            return number - 1, reason
        stub.measure(2)
    return most, ""


def dry_rounds(promise: float, calls: float) -> int:
    """The least n at which promise x credit / (credit + n x promise) no longer pays for two schedules."""
    n = 0
    while (
        promise * STOPPING.initial_credit / (STOPPING.initial_credit + n * promise) * ENERGY_J * calls
        >= 2 * COST_J
    ):
        n += 1
    return n


@pytest.mark.parametrize("promise", [0.3, 0.02])
@pytest.mark.parametrize("calls", [1e4, 5e4])
def test_rounds_without_improvement_lower_the_expected_saving(promise: float, calls: float) -> None:
    expected = dry_rounds(promise, calls)
    measured, why = rounds(Stub(promise, [0.0] * 60), calls)
    assert measured == expected
    assert why.startswith("another round would not pay: 2 schedules cost about 200 J")
    assert why.endswith(f"in {calls:,.0f} calls")


def test_achieved_predictions_keep_the_search_going() -> None:
    dry, _ = rounds(Stub(0.2, [0.0] * 60), 1e4)
    kept, why = rounds(Stub(0.2, [0.2] * 60), 1e4)
    assert dry < 10
    assert (kept, why) == (50, "")


def test_latency_objective_compares_seconds() -> None:
    # One more round of two: 2 x (0.5 s of timing + compile_wait_s) = 2 s, against 0.2 x 0.25 s a call.
    assert rounds(Stub(0.2, [0.0] * 60, "latency"), 39.0)[0] == 0
    measured, why = rounds(Stub(0.2, [0.0] * 60, "latency"), 41.0)
    assert measured == 1
    assert "cost about 2 s and are expected to save" in why


def test_reason_has_plain_digits() -> None:
    """A fifth of 0.5 J in each of 1623 calls: 162.3 J."""
    _, why = rounds(Stub(0.2, [0.0] * 60), 1623.0)
    assert why.endswith("cost about 200 J and are expected to save 160 J in 1,623 calls")


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets "quick" mean 40 trials for a kernel that is called so often."""
    return lambda calls: monkeypatch.setitem(EFFORTS, "quick", Effort(40, calls))


@pytest.mark.slow
def test_run_for_few_calls_stops_early(cheap: Callable[[float], None]) -> None:
    cheap(1.0)
    short = tune(trials=None, effort="quick")
    assert short.stopped.startswith("another round would not pay: ")
    assert short.trial_count < 20
    assert short.best.metered
    assert "another round would not pay" in " ".join(short.summary().split())
    cheap(1e15)
    long = tune(trials=None, effort="quick")
    assert long.stopped == ""
    assert long.trial_count == 40
    assert [t.schedule for t in long.trials[: short.trial_count]] == [t.schedule for t in short.trials]


def test_run_for_latency_stops_by_seconds(cheap: Callable[[float], None]) -> None:
    cheap(1.0)
    assert " s and are expected to save " in tune(trials=None, effort="quick", objective="latency").stopped


def test_stopped_run_is_reproducible_for_any_workers_and_resumed(
    cheap: Callable[[float], None], tmp_path: Path
) -> None:
    cheap(1e6)
    whole = tune(trials=None, effort="quick", records=tmp_path / "r.db")
    assert 8 < whole.trial_count < 40
    filed = rows(tmp_path / "r.db")
    for workers in (1, 4):
        with ThreadPoolExecutor(workers) as pool:
            fresh = tune(trials=None, effort="quick", executor=pool)
            again = tune(trials=None, effort="quick", executor=pool, records=tmp_path / "r.db")
        for other in (fresh, again):
            assert winner(other) == winner(whole)
            assert other.stopped == whole.stopped
            assert [t.to_json() for t in other.trials] == [t.to_json() for t in whole.trials]
            assert other.spent == whole.spent
    assert rows(tmp_path / "r.db") == filed


def test_stopping_rule_works_with_a_failing_meter(
    cheap: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(10_000))
    meter = SimulatedDevice.meter

    def failing(self: SimulatedDevice, *given: Any, **named: Any) -> Metering:
        if next(calls) % 3 == 1:
            raise DeviceError("the counter is busy")
        return meter(self, *given, **named)

    monkeypatch.setattr(SimulatedDevice, "meter", failing)
    cheap(1e6)
    result = tune(trials=None, effort="quick")
    assert result.best.metered
    assert any(t.status == "device: the counter is busy" for t in result.trials)
