"""SM clocks are fixed for a measurement, and previous settings come back in every case."""

import os
import signal
import subprocess
from typing import Any

import pynvml
import pytest

from ekc.devices.cuda import gpu as real_gpu
from ekc.devices.cuda.gpu import SmClockControl
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import ActuatorError, DeviceError
from tests.scripted.nvml.boards import GEARS, ScriptedBoards

CAP_MW = 280_000
"""Power cap in milliwatts, as an administrator set it."""


@pytest.fixture
def held(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(real_gpu, "explain_refusal", lambda: "")
    found = SmClockControl(GpuSensors(here.get_uuid()))
    yield found
    found.close()


def test_clock_is_fixed_and_restored(held: SmClockControl, here: ScriptedBoards) -> None:
    assert held.list_clocks().mhz == tuple(GEARS)
    for mhz in (1200, 600):
        with held.fix_clock(mhz):
            assert here.read_limits() == ([300, mhz], None, CAP_MW)
        assert here.read_limits() == (None, None, CAP_MW)
    held.close()
    assert not list(here.leases.glob("*.json"))


def test_clock_is_restored_after_an_error(held: SmClockControl, here: ScriptedBoards) -> None:
    with pytest.raises(ZeroDivisionError), held.fix_clock(900):
        raise ZeroDivisionError
    assert here.read_limits() == (None, None, CAP_MW)


def test_clock_that_is_not_offered_is_refused(held: SmClockControl, here: ScriptedBoards) -> None:
    words = "cannot be set to 1201 MHz: it offers 300 to 1995 MHz; nearest: 1200"
    with pytest.raises(DeviceError, match=words), held.fix_clock(1201):
        pytest.fail("it was set")
    assert here.read_limits() == (None, None, CAP_MW)


def test_driver_that_refuses_is_one_line_and_nothing_is_set(
    held: SmClockControl,
    here: ScriptedBoards,
) -> None:
    here.update_script(fail={"nvmlDeviceSetPowerManagementLimit": pynvml.NVML_ERROR_NO_PERMISSION})
    with pytest.raises(ActuatorError, match="root or CAP_SYS_ADMIN") as problem, held.fix_clock(900):
        pytest.fail("it was set")
    assert "\n" not in str(problem.value)
    assert here.read_calls() == []


def test_missing_right_is_reported_without_a_try(
    held: SmClockControl,
    here: ScriptedBoards,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        real_gpu, "explain_refusal", lambda: "this process lacks CAP_SYS_ADMIN, which root has"
    )
    monkeypatch.setattr(real_gpu.zeusd, "find_daemon_address", lambda: None)
    monkeypatch.setattr(real_gpu.client, "find_socket", lambda: None)
    offered = held.list_clocks()
    assert offered.mhz == ()
    assert offered.reason == "this process lacks CAP_SYS_ADMIN, which root has, and no daemon runs"
    assert offered.current_mhz == 1995
    assert here.read_calls() == []


def test_gpu_that_is_governed_is_not_touched(held: SmClockControl, here: ScriptedBoards) -> None:
    other = SmClockControl(GpuSensors(here.get_uuid()))
    with held.fix_clock(900):
        with pytest.raises(ActuatorError, match="governed by process"), other.fix_clock(1200):
            pytest.fail("it was set")
        assert here.read_limits()[0] == [300, 900]


MEASURING = """
import signal, sys, time
# Where the tests run in the background, a shell has Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from ekc.devices.cuda import gpu as real_gpu
real_gpu.explain_refusal = lambda: ""
from ekc.devices.nvml.sensors import GpuSensors
with real_gpu.SmClockControl(GpuSensors(sys.argv[1])).fix_clock(900):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_killed_run_leaves_no_clock_behind(boards: ScriptedBoards, number: int) -> None:
    child = boards.start_python("-c", MEASURING, boards.get_uuid(), stderr=subprocess.DEVNULL)
    assert child.stdout.readline() == "held\n"
    assert boards.read_limits()[0] == [300, 900]
    os.kill(child.pid, number)
    child.wait()
    assert boards.wait_for(lambda b: b.read_limits() == (None, None, CAP_MW), 20.0) < 20.0
    child.stdout.close()
