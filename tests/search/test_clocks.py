"""Clocks that cannot be searched: an ordinary answer, told and not raised."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ekc import devices
from ekc.codegen.compiled import CompiledKernel
from ekc.devices.device import Clocks, Metering
from ekc.devices.simulated.device import SimulatedDevice
from ekc.devices.simulated.specs import find_spec
from ekc.errors import ActuatorError
from ekc.search.data.result import INTERRUPTED
from tests.search.runs import tune

REFUSED = "setting the SM clock of GPU 0 (Scripted GPU): Insufficient Permissions"


class NotOurs(SimulatedDevice):
    """Its clocks are somebody else's."""

    def __init__(self) -> None:
        super().__init__(find_spec("a100"))

    def clocks(self) -> Clocks:
        return Clocks(reason="this process lacks CAP_SYS_ADMIN, which root has, and no zeusd runs")


class Refuses(SimulatedDevice):
    """Offers clocks, and the driver refuses when one is set: `at` says in which call."""

    def __init__(self, at: Callable[[SimulatedDevice], SimulatedDevice]) -> None:
        super().__init__(find_spec("a100"))
        self._at = at

    def at_clock(self, mhz: int) -> SimulatedDevice:
        return self._at(super().at_clock(mhz))


class Unmetered(SimulatedDevice):
    """Refuses while it is metered."""

    def meter(self, kernel: CompiledKernel, *, seconds: float = 1.0, repeat: int = 0) -> Metering:
        raise ActuatorError(REFUSED)


def at_once(device: SimulatedDevice) -> SimulatedDevice:
    raise ActuatorError(REFUSED)


def when_metered(device: SimulatedDevice) -> SimulatedDevice:
    return Unmetered(find_spec("a100"), int(device.clocks().current_mhz))


class Stopped(SimulatedDevice):
    """Ctrl-C comes while the n-th clock is set."""

    def __init__(self, at: int) -> None:
        super().__init__(find_spec("a100"))
        self._at, self.asked = at, 0

    def at_clock(self, mhz: int) -> SimulatedDevice:
        self.asked += 1
        if self.asked == self._at:
            raise KeyboardInterrupt
        return super().at_clock(mhz)


def test_ctrl_c_leaves_the_clocks_that_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tune(clocks="search").clock_front
    monkeypatch.setattr(devices, "open", lambda target="auto": Stopped(6))
    result = tune(clocks="search")
    assert result.stopped == INTERRUPTED
    assert result.clock_front == whole[:5]
    assert len(whole) == 8


def test_clocks_that_nobody_lets_us_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "open", lambda target="auto": NotOurs())
    result = tune(clocks="search")
    assert result.best.ok
    assert result.clock_front == ()
    assert result.clocks_note.startswith("not searched: this process lacks CAP_SYS_ADMIN")
    assert "\nclocks     not searched: this process" in result.summary()
    assert result.to_json()["clocks_note"] == result.clocks_note


@pytest.mark.parametrize("at", [at_once, when_metered])
def test_clocks_that_the_driver_refuses(
    at: Callable[[SimulatedDevice], SimulatedDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "open", lambda target="auto": Refuses(at))
    result = tune(clocks="search")
    assert result.best.ok
    assert result.clock_front == ()
    lowest = result.clocks_note.split(" MHz")[0]
    assert result.clocks_note == f"{lowest} MHz: device: {REFUSED}"
