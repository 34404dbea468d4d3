"""The heartbeat of a lease keeper, and its recovery from stops, failures and forks."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
import warnings

import pytest

from ekc.devices.clocks import lease, lease_file
from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.lease_file import find_governor_pid
from ekc.devices.clocks.limits import NvmlLimits, Settings
from ekc.devices.clocks.restore import end_lease
from ekc.errors import ActuatorError
from tests.devices.clocks.helpers import make_keeper
from tests.scripted.nvml.boards import ScriptedBoards

LOW_LIMIT = Settings(sm_mhz=1200)
SET_AGAIN_MESSAGE = (
    "the lease of NVML, GPU 0 (Scripted GPU) had ended (the governor was stopped for a while, or its file "
    "was deleted); taken and set again"
)
BUSY_SCRIPT = """
import sys, time
from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.limits import Settings
from ekc.devices.clocks.limits import NvmlLimits
from ekc.devices.clocks.limits import Settings

keeper = LeaseKeeper([NvmlLimits(sys.argv[1])], on_message=lambda line: print(line, flush=True))
step = 0
while keeper._heartbeat_thread.is_alive():
    step += 1
    keeper.actuators[0].apply(Settings(sm_mhz=1200 - 15 * (step % 2)))
    time.sleep(0.01)
print("no heartbeat")
"""


def _slow_guard_start(keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the start of a guard take longer than a heartbeat."""
    start = keeper._start_guard

    def slow() -> subprocess.Popen[bytes]:
        time.sleep(1.5 * lease.HEARTBEAT_INTERVAL_S)
        return start()

    monkeypatch.setattr(keeper, "_start_guard", slow)


def test_heartbeat_waits_while_leases_are_renewed(
    here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat once wrote to a pipe that the loop had closed, and ended with the error."""
    messages: list[str] = []
    with make_keeper(here, on_message=messages.append) as keeper:
        (actuator,) = keeper.actuators
        actuator.apply(LOW_LIMIT)
        _slow_guard_start(keeper, monkeypatch)
        for mhz in (1185, 1170):
            lease_file.erase_lease(here.get_uuid())
            actuator.apply(Settings(sm_mhz=mhz))
            time.sleep(1.2 * lease.HEARTBEAT_INTERVAL_S)
            assert keeper._heartbeat_thread.is_alive()
            assert keeper._guard_process.poll() is None
            assert here.read_limits()[0] == [300, mhz]
    assert messages == [SET_AGAIN_MESSAGE, SET_AGAIN_MESSAGE]


@pytest.mark.parametrize("stop_count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_heartbeat_survives_repeated_stops(boards: ScriptedBoards, stop_count: int) -> None:
    busy = boards.start_python("-c", BUSY_SCRIPT, boards.get_uuid())
    for _ in range(stop_count):
        assert boards.wait_for(lambda b: b.read_limits()[0] is not None, 20) < 20
        busy.send_signal(signal.SIGSTOP)
        assert boards.wait_for(lambda b: not b.has_lease(), 20) < 20
        busy.send_signal(signal.SIGCONT)
        assert busy.stdout.readline() == f"{SET_AGAIN_MESSAGE}\n"
    busy.kill()
    assert busy.communicate(timeout=20)[0] == ""
    assert boards.wait_for(lambda b: not b.has_lease(), 20) < 20
    assert boards.read_limits()[0] is None


def test_heartbeat_survives_exceptions(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings(), make_keeper(here, on_message=warnings.warn) as keeper:
        warnings.simplefilter("error")
        (actuator,) = keeper.actuators
        actuator.apply(LOW_LIMIT)
        with monkeypatch.context() as patched:
            tried = threading.Event()

            def fails() -> None:
                tried.set()
                raise ZeroDivisionError("oh")

            patched.setattr(keeper, "_signal_guard", fails)
            assert tried.wait(10)
        end_lease(actuator.lease, NvmlLimits(here.get_uuid()))
        assert here.wait_for(lambda b: b.read_limits()[0] == [300, 1200], 10) < 10


@pytest.mark.parametrize("where", ["guard", "put"])
def test_failed_renewal_is_repeated(
    here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A failed renewal once left the lease held and the limits unset."""
    messages: list[str] = []
    with make_keeper(here, on_message=messages.append) as keeper:
        (actuator,) = keeper.actuators
        actuator.apply(LOW_LIMIT)
        with monkeypatch.context() as patched:
            _make_fail_once(patched, keeper, where)
            end_lease(actuator.lease, NvmlLimits(here.get_uuid()))
            assert here.wait_for(lambda b: b.read_limits()[0] == [300, 1200], 10) < 10
        assert actuator.settings() == LOW_LIMIT
    assert messages[0] == "not now; it is tried again until it is done"
    assert messages[-1] == SET_AGAIN_MESSAGE


def _make_fail_once(patched: pytest.MonkeyPatch, keeper: LeaseKeeper, where: str) -> None:
    owner, name = (keeper, "_start_guard") if where == "guard" else (keeper.actuators[0], "reapply")
    original, failures = getattr(owner, name), []

    def fail_once() -> object:
        if not failures:
            failures.append(True)
            raise ActuatorError("not now")
        return original()

    patched.setattr(owner, name, fail_once)


def test_governor_pid_can_be_read_repeatedly(here: ScriptedBoards) -> None:
    """The third reader once got process 0."""
    with make_keeper(here) as keeper:
        assert [find_governor_pid(here.get_uuid()) for _ in range(10)] == [os.getpid()] * 10
        with pytest.raises(ActuatorError, match=f"is governed by process {os.getpid()} already"):
            make_keeper(here)
        waiting = keeper.actuators[0]._governor_lock._socket
        assert here.wait_for(lambda _: not select.select([waiting], [], [], 0)[0], 10) < 10
    assert find_governor_pid(here.get_uuid()) is None


FORKED_SCRIPT = """
import atexit, os, signal, sys, time
from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.limits import Settings
from ekc.devices.clocks.limits import NvmlLimits
from ekc.devices.clocks.limits import Settings

keeper = LeaseKeeper([NvmlLimits(sys.argv[1])])
atexit.register(keeper.close)
keeper.actuators[0].apply(Settings(sm_mhz=1200))
if os.fork() == 0:
    sys.exit(0)
os.wait()
print("a child has ended", flush=True)
sys.stdin.readline()
if os.fork() == 0:
    time.sleep(60)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_forked_child_neither_ends_nor_keeps_the_lease(boards: ScriptedBoards) -> None:
    options = {"stdin": subprocess.PIPE, "start_new_session": True}
    parent = boards.start_python("-c", FORKED_SCRIPT, boards.get_uuid(), **options)
    assert parent.stdout.readline() == "a child has ended\n"
    assert boards.read_limits()[0] == [300, 1200]
    parent.stdin.write("\n")
    parent.stdin.close()
    assert parent.wait(20) == -signal.SIGKILL
    try:
        assert boards.wait_for(lambda b: find_governor_pid(b.get_uuid()) is None, 20) < 20
        assert boards.wait_for(lambda b: not b.has_lease(), 20) < 20
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
    assert boards.read_limits()[0] is None
    # The kernel closed the pipe, so the guard acted without a timeout.
    assert f"governor {parent.pid} died" in parent.stderr.read()
