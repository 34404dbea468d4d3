"""Tuning runs with other search methods, and with clocks that cannot be searched."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import ekc
from ekc import devices
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Clocks, Metering
from ekc.devices.simulated.device import SimulatedDevice
from ekc.devices.simulated.specs import find_spec
from ekc.errors import ActuatorError
from ekc.search.data.options import SearchMethod, TuneOptions
from ekc.search.data.result import INTERRUPTED
from ekc.search.database.database import RecordStore
from ekc.search.loop.measure import Measurer
from ekc.search.run import TuningRun
from ekc.search.space.space import Space
from ekc.search.tuning_result import TuningResult
from tests.search.helpers import tune

REFUSED = "setting the SM clock of GPU 0 (Scripted GPU): Insufficient Permissions"


class NotOurs(SimulatedDevice):
    """A device whose clocks this process cannot set."""

    def __init__(self) -> None:
        super().__init__(find_spec("a100"))

    def clocks(self) -> Clocks:
        return Clocks(reason="this process lacks CAP_SYS_ADMIN, which root has, and no zeusd runs")


class Refuses(SimulatedDevice):
    """A device whose driver refuses when a clock is set, in the call `at`."""

    def __init__(self, at: Callable[[SimulatedDevice], SimulatedDevice]) -> None:
        super().__init__(find_spec("a100"))
        self._at = at

    def at_clock(self, mhz: int) -> SimulatedDevice:
        return self._at(super().at_clock(mhz))


class Unmetered(SimulatedDevice):
    """A device that refuses when it is metered."""

    def meter(self, kernel: CompiledKernel, *, seconds: float = 1.0, repeat: int = 0) -> Metering:
        raise ActuatorError(REFUSED)


def at_once(device: SimulatedDevice) -> SimulatedDevice:
    raise ActuatorError(REFUSED)


def when_metered(device: SimulatedDevice) -> SimulatedDevice:
    return Unmetered(find_spec("a100"), int(device.clocks().current_mhz))


class Stopped(SimulatedDevice):
    """A device that is interrupted while the n-th clock is set."""

    def __init__(self, at: int) -> None:
        super().__init__(find_spec("a100"))
        self._at, self.asked = at, 0

    def at_clock(self, mhz: int) -> SimulatedDevice:
        self.asked += 1
        if self.asked == self._at:
            raise KeyboardInterrupt
        return super().at_clock(mhz)


def test_ctrl_c_keeps_clocks_measured_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = tune(clocks="search").clock_front
    monkeypatch.setattr(devices, "open", lambda target="auto": Stopped(6))
    result = tune(clocks="search")
    assert result.stopped == INTERRUPTED
    assert result.clock_front == clocks[:5]
    assert len(clocks) == 8


def test_clocks_that_cannot_be_set_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "open", lambda target="auto": NotOurs())
    result = tune(clocks="search")
    assert result.best.ok
    assert result.clock_front == ()
    assert result.clocks_note.startswith("not searched: this process lacks CAP_SYS_ADMIN")
    assert "\nclocks     not searched: this process" in result.summary()
    assert result.to_json()["clocks_note"] == result.clocks_note


@pytest.mark.parametrize("at", [at_once, when_metered])
def test_clocks_that_the_driver_refuses_are_noted(
    at: Callable[[SimulatedDevice], SimulatedDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "open", lambda target="auto": Refuses(at))
    result = tune(clocks="search")
    assert result.best.ok
    assert result.clock_front == ()
    lowest = result.clocks_note.split(" MHz")[0]
    assert result.clocks_note == f"{lowest} MHz: device: {REFUSED}"


def searched(
    method: SearchMethod, objective: str = "energy", trials: int = 24
) -> tuple[TuningResult, TuningRun]:
    options = TuneOptions(trials, objective, 0.05, False, 0, None)
    with RecordStore(None) as store, ThreadPoolExecutor(2) as workers:
        measurer = Measurer(devices.open("a100"), store)
        run = TuningRun(
            Space(ekc.matvec(256, 256), measurer.device.limits),
            measurer,
            workers,
            options,
            None,
            method,
        )
        return run.run(()), run


def test_metered_share_of_one_meters_everything() -> None:
    result, _ = searched(SearchMethod(metered_share=1.0))
    timed = [t for t in result.trials if t.ok]
    assert len(timed) == result.metered_count > 20
    assert all(card.share == 1.0 for card in result.model_cards)


def test_fixed_metered_share_is_kept() -> None:
    result, run = searched(SearchMethod(metered_share=0.3), trials=40)
    assert {card.share for card in result.model_cards} == {0.3}
    assert 4 < run.task.learner.power_model.row_count <= 0.3 * result.trial_count + 4


def test_constant_power_predicts_one_power() -> None:
    result, _ = searched(SearchMethod(power_source="constant"))
    powers = [t.power_w for t in result.trials if t.ok and not t.metered]
    assert len(powers) > 5
    assert len({round(w, 6) for w in powers if w is not None}) == 1


def test_latency_objective_meters_finalists_only() -> None:
    result, run = searched(SearchMethod(), objective="latency")
    assert run.task.learner.power_model.row_count == 0
    assert 0 < result.metered_count <= 6
    assert result.best == result.fastest
