"""The heart of a lease: what it does beside the loop, and what may not stop it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Callable

import pytest

from ekc.devices.clocks import lease_file
from ekc.devices.clocks.lease import HEARTBEAT_INTERVAL_S, LeaseKeeper
from ekc.devices.clocks.lease_file import find_governor_pid
from ekc.devices.clocks.nvml_limits import NvmlLimits
from ekc.devices.clocks.restore import end_lease
from ekc.errors import ActuatorError
from ekc.governor.protocols import Settings
from tests.scripted.nvml.boards import ScriptedBoards

LOW_LIMIT = Settings(sm_mhz=1200)
SET_AGAIN_MESSAGE = "the governor was stopped for a while and its guard put settings back; set again"
BUSY_SCRIPT = """
import sys, time
from ekc.devices.clocks.lease import Keeper
from ekc.devices.clocks.nvml_limits import NvmlLimits
from ekc.devices.clocks.limits import Settings

keeper = Keeper([NvmlLimits(sys.argv[1])], tell=lambda line: print(line, flush=True))
step = 0
while keeper._heart.is_alive():
    step += 1
    keeper.actuators[0].apply(Settings(sm_mhz=1200 - 15 * (step % 2)))
    time.sleep(0.01)
print("no heart")
"""


def _make_keeper(boards: ScriptedBoards, tell: Callable[[str], object] = lambda line: None) -> LeaseKeeper:
    return LeaseKeeper([NvmlLimits(boards.get_uuid())], on_message=tell)


def _slow_guard_start(keeper: LeaseKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guard takes longer to start than a heart to beat."""
    start = keeper._start_guard

    def slow() -> subprocess.Popen[bytes]:
        time.sleep(1.5 * HEARTBEAT_INTERVAL_S)
        return start()

    monkeypatch.setattr(keeper, "_start_guard", slow)


def test_the_heart_waits_while_the_loop_renews(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    """It wrote to the pipe that the loop had closed, and died of it."""
    told: list[str] = []
    with _make_keeper(here, told.append) as keeper:
        (actuator,) = keeper.actuators
        actuator.apply(LOW_LIMIT)
        _slow_guard_start(keeper, monkeypatch)
        for mhz in (1185, 1170):
            lease_file.erase_lease(here.get_uuid())
            actuator.apply(Settings(sm_mhz=mhz))
            time.sleep(1.2 * HEARTBEAT_INTERVAL_S)
            assert keeper._heartbeat_thread.is_alive()
            assert keeper._guard_process.poll() is None
            assert here.read_limits()[0] == [300, mhz]
    assert told == [SET_AGAIN_MESSAGE, SET_AGAIN_MESSAGE]


def test_a_busy_loop_that_is_stopped_time_and_again_keeps_its_heart(boards: ScriptedBoards) -> None:
    busy = boards.start_python("-c", BUSY_SCRIPT, boards.get_uuid(), stdout=subprocess.PIPE)
    assert busy.stdout is not None
    for _ in range(3):
        assert boards.wait_for(lambda b: b.limits()[0] is not None, 20) < 20
        busy.send_signal(signal.SIGSTOP)
        assert boards.wait_for(lambda b: not list(b.leases.glob("*.json")), 20) < 20
        busy.send_signal(signal.SIGCONT)
        assert busy.stdout.readline() == f"{SET_AGAIN_MESSAGE}\n"
    busy.kill()
    assert busy.communicate(timeout=20) == ("", None)
    assert boards.wait_for(lambda b: not list(b.leases.glob("*.json")), 20) < 20
    assert boards.read_limits()[0] is None


def test_nothing_that_is_raised_ends_the_heart(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings(), _make_keeper(here, warnings.warn) as keeper:
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
        assert here.wait_for(lambda b: b.limits()[0] == [300, 1200], 10) < 10


@pytest.mark.parametrize("where", ["guard", "put"])
def test_a_renewal_that_fails_once_sets_the_clocks_all_the_same(
    here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Leases were held again, and nobody knew that nothing was set under them."""
    told: list[str] = []
    with _make_keeper(here, told.append) as keeper:
        (actuator,) = keeper.actuators
        actuator.apply(LOW_LIMIT)
        with monkeypatch.context() as patched:
            _make_fail_once(patched, keeper, where)
            end_lease(actuator.lease, NvmlLimits(here.get_uuid()))
            assert here.wait_for(lambda b: b.limits()[0] == [300, 1200], 10) < 10
        assert actuator.settings() == LOW_LIMIT
    assert told[0] == "not now; it is tried again until it is done"
    assert told[-1] == SET_AGAIN_MESSAGE


def _make_fail_once(patched: pytest.MonkeyPatch, keeper: LeaseKeeper, where: str) -> None:
    owner, name = (keeper, "_start_guard") if where == "guard" else (keeper.actuators[0], "repeat")
    usual, failed = getattr(owner, name), []

    def once() -> object:
        if not failed:
            failed.append(True)
            raise ActuatorError("not now")
        return usual()

    patched.setattr(owner, name, once)


def test_whoever_asks_often_is_told_who_governs_each_time(here: ScriptedBoards) -> None:
    """The third to ask was told of process 0."""
    with _make_keeper(here) as keeper:
        assert [find_governor_pid(here.get_uuid()) for _ in range(10)] == [os.getpid()] * 10
        with pytest.raises(ActuatorError, match=f"is governed by process {os.getpid()} already"):
            _make_keeper(here)
        waiting = keeper.actuators[0]._governor_lock._socket
        assert here.wait_for(lambda _: not select.select([waiting], [], [], 0)[0], 10) < 10
    assert find_governor_pid(here.get_uuid()) is None


FORKED_SCRIPT = """
import atexit, os, signal, sys, time
from ekc.devices.clocks.lease import Keeper
from ekc.devices.clocks.nvml_limits import NvmlLimits
from ekc.devices.clocks.limits import Settings

keeper = Keeper([NvmlLimits(sys.argv[1])])
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


def test_a_forked_child_neither_ends_the_lease_nor_keeps_it(boards: ScriptedBoards) -> None:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    parent = boards.start_python("-c", FORKED_SCRIPT, boards.get_uuid(), **pipes, start_new_session=True)
    assert parent.stdin is not None
    assert parent.stdout is not None
    assert parent.stderr is not None
    assert parent.stdout.readline() == "a child has ended\n"
    assert boards.read_limits()[0] == [300, 1200]
    parent.stdin.write("\n")
    parent.stdin.close()
    assert parent.wait(20) == -signal.SIGKILL
    try:
        assert boards.wait_for(lambda b: find_governor_pid(b.uuid()) is None, 20) < 20
        assert boards.wait_for(lambda b: not list(b.leases.glob("*.json")), 20) < 20
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
    assert boards.read_limits()[0] is None
    # The kernel had closed the pipe, so no silence was waited for.
    assert f"governor {parent.pid} died" in parent.stderr.read()
