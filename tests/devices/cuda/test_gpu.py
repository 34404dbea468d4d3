"""Sensor readings of a GPU while it works."""

from __future__ import annotations

import threading
from typing import Any

import pynvml
import pytest

from ekc.devices.cuda.gpu import SENSOR_POLL_INTERVAL_S, SensorPoller
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import DeviceError
from tests.scripted.cuda.node import ScriptedNode


class Busy(GpuSensors):
    """A clock that is low before and after the work, and high during it."""

    working = False
    looked = threading.Event()
    reasons: tuple[str, ...] = ()
    watts = 398.0
    """Beside a cap of 400 W."""

    def power_w(self) -> float:
        return self.watts

    def clock_mhz(self) -> float:
        self.looked.set()
        return 1410.0 if self.working else 210.0

    def throttle(self) -> tuple[str, ...]:
        return self.reasons


def sensors_of(node: ScriptedNode, kind: Any = GpuSensors) -> Any:
    return kind("0", node.library)


def test_clock_keeps_its_last_value_when_a_reading_fails() -> None:
    sensors = sensors_of(ScriptedNode(), Busy)
    sensors.working = True
    watch = SensorPoller(sensors)
    watch._poll_once()
    sensors.clock_mhz = lambda: float("nan")
    watch._poll_once()
    assert watch.read_state().clock_mhz == 1410.0


def test_clock_is_that_of_the_work_and_all_reasons_are_kept() -> None:
    sensors = sensors_of(ScriptedNode(), Busy)
    with SensorPoller(sensors) as watch:
        sensors.working, sensors.reasons = True, ("power cap",)
        for reasons in (("hardware slowdown",), ()):
            sensors.looked.clear()
            assert sensors.looked.wait()
            sensors.reasons = reasons
        sensors.looked.clear()
        assert sensors.looked.wait()
    sensors.working = False
    seen = watch.read_state()
    assert seen.clock_mhz == 1410.0
    assert seen.throttle == ("hardware slowdown", "power cap")
    assert seen.power_cap_w == 400.0


@pytest.mark.parametrize(
    ("watts", "kept"),
    [
        (398.0, ("hardware slowdown", "power cap")),
        (float("nan"), ("hardware slowdown", "power cap")),
        (250.0, ("hardware slowdown",)),
    ],
)
def test_power_cap_of_the_kernel_before_is_no_reason(watts: float, kept: tuple[str, ...]) -> None:
    sensors = sensors_of(ScriptedNode(), Busy)
    sensors.reasons, sensors.watts = ("hardware slowdown", "power cap"), watts
    watch = SensorPoller(sensors)
    watch._poll_once()
    assert watch.read_state().throttle == kept


def test_short_measurement_is_followed_by_a_reading() -> None:
    with SensorPoller(sensors_of(ScriptedNode())) as watch:
        pass
    assert watch.read_state().clock_mhz == 1410.0


def test_lost_gpu_ends_the_poller_and_is_reported() -> None:
    node = ScriptedNode()
    sensors = sensors_of(node)
    node.library.fails = dict.fromkeys(
        ("nvmlDeviceGetClockInfo", "nvmlDeviceGetCurrentClocksEventReasons"), pynvml.NVML_ERROR_GPU_IS_LOST
    )
    with SensorPoller(sensors) as watch:
        watch._thread.join(20 * SENSOR_POLL_INTERVAL_S)
    with pytest.raises(DeviceError, match="lost"):
        watch.read_state()
