"""Tuning runs with other search methods, and searches of clocks, also where clocks cannot be set."""

from __future__ import annotations

from itertools import count

import pytest

from ekc.devices.device import OfferedClocks
from ekc.devices.simulated.device import SimulatedDevice
from ekc.errors import ActuatorError
from ekc.search.data.options import SearchMethod
from ekc.search.data.result import INTERRUPTED
from ekc.search.tuning_result import TuningResult
from tests.search.helpers import run_search, tune, winner

REFUSED = "setting the SM clock of GPU 0 (Scripted GPU): Insufficient Permissions"
set_clock = SimulatedDevice.at_clock


def refuse(*_: object, **__: object) -> SimulatedDevice:
    """The driver refuses when a clock is set."""
    raise ActuatorError(REFUSED)


def refuse_metering(device: SimulatedDevice, mhz: int) -> SimulatedDevice:
    """The driver refuses when a device is metered at its new clock."""
    moved = set_clock(device, mhz)
    moved.meter = refuse  # type: ignore[assignment, method-assign]
    return moved


@pytest.fixture(scope="module")
def clock_search() -> TuningResult:
    return tune(clocks="search")


def test_clock_search_keeps_winner_and_adds_front(
    clock_search: TuningResult, plain_run: TuningResult
) -> None:
    front = clock_search.clock_front
    assert winner(clock_search) == winner(plain_run)
    assert plain_run.clock_front == ()
    assert plain_run.plan is None
    clocks = [t.clock_mhz for t in front]
    assert len(clocks) >= 8
    assert clocks == sorted(clocks)
    assert all(t.schedule == clock_search.best.schedule for t in front)
    assert any(t.metered for t in front)
    assert front[0].latency_s > front[-1].latency_s


def test_clock_search_plans_clock_and_kernel(clock_search: TuningResult) -> None:
    plan = clock_search.plan
    assert plan is not None
    assert (plan.device, plan.simulated, plan.default_mhz) == ("a100", True, 1275)
    assert plan.slowdown <= 0.05 + 1e-9
    savings = plan.savings
    assert savings.together.value >= max(savings.fixed.value, savings.winners_at_clock.value) - 1e-12
    (layer,) = plan.layers
    assert layer.schedule in {t.schedule.digest for t in clock_search.trials}
    assert clock_search.to_json()["plan"] == plan.to_json()
    assert "Clock plan for a100 (simulated)" in clock_search.summary()


def test_clock_search_keeps_its_share_of_metered_seconds(
    clock_search: TuningResult, plain_run: TuningResult
) -> None:
    most_s = max(8 * 7.5, plain_run.spent.metering_s / 2)
    assert 0 < clock_search.spent.metering_s - plain_run.spent.metering_s <= most_s


def test_ctrl_c_keeps_clocks_measured_before(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count(1)

    def interrupt(device: SimulatedDevice, mhz: int) -> SimulatedDevice:
        if next(calls) == 4:
            raise KeyboardInterrupt
        return set_clock(device, mhz)

    monkeypatch.setattr(SimulatedDevice, "at_clock", interrupt)
    result = tune(clocks="search")
    assert result.stopped == INTERRUPTED
    assert len(result.clock_front) >= 8
    assert result.plan is not None


def test_clocks_that_cannot_be_set_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "this process lacks CAP_SYS_ADMIN, which root has, and no zeusd runs"
    monkeypatch.setattr(SimulatedDevice, "clocks", lambda _: OfferedClocks(reason=reason))
    result = tune(clocks="search")
    assert result.best.ok
    assert result.clock_front == ()
    assert result.clocks_note.startswith("not searched: this process lacks CAP_SYS_ADMIN")
    assert "\nclocks     not searched: this process" in result.summary()
    assert result.to_json()["clocks_note"] == result.clocks_note


@pytest.mark.parametrize("at_clock", [refuse, refuse_metering])
def test_clocks_that_the_driver_refuses_are_noted(at_clock: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedDevice, "at_clock", at_clock)
    result = tune(clocks="search")
    assert result.best.ok
    lowest = result.clocks_note.split(" MHz")[0]
    assert result.clocks_note == f"{lowest} MHz: device: {REFUSED}"
    assert not any(t.metered and t.clock_mhz != 1275 for t in result.clock_front)
    assert (result.plan is None) == (at_clock is refuse)


def test_metered_share_of_one_meters_everything() -> None:
    result, _ = run_search(method=SearchMethod(metered_share=1.0), trials=24)
    timed = [t for t in result.trials if t.ok]
    assert len(timed) == result.metered_count > 20


@pytest.mark.slow
def test_fixed_metered_share_is_kept() -> None:
    result, run = run_search(method=SearchMethod(metered_share=0.3), trials=40)
    assert 4 < run.task.learner.power_model.row_count <= 0.3 * result.trial_count + 4


def test_constant_power_predicts_one_power() -> None:
    result, _ = run_search(method=SearchMethod(power_source="constant"), trials=24)
    powers = [t.power_w for t in result.trials if t.ok and not t.metered]
    assert len(powers) > 5
    assert len({round(w, 6) for w in powers if w is not None}) == 1


def test_latency_objective_meters_finalists_only() -> None:
    result, run = run_search(objective="latency", trials=24)
    assert run.task.learner.power_model.row_count == 0
    assert 0 < result.metered_count <= 6
    assert result.best == result.fastest
