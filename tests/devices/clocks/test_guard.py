"""Leases restore the previous settings, whatever ends the governor: real processes and signals, scripted
NVML."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scripted.nvml.boards import ScriptedBoards
from tests.scripted.zeusd import ScriptedZeusd

TIMEOUT_S = 5.0
RESTLESS_SCRIPT = str(Path(__file__).with_name("restless.py"))


class RestlessGovernor:
    """A governor that sets limits all the time, and its guard."""

    def __init__(self, boards: ScriptedBoards) -> None:
        self.boards = boards
        self.process = boards.start_python(RESTLESS_SCRIPT, "60", stderr=subprocess.STDOUT)
        self.guard_pid = self.read_next_guard_pid()
        assert boards.wait_for(_are_clocks_set, 20) < 20

    def read_next_guard_pid(self) -> int:
        """Process id of the first, or the next, guard."""
        others = []
        for line in self.process.stdout:
            if line.startswith("guard "):
                return int(line.split()[1])
            others.append(line)
        raise AssertionError(f"the governor ended without a guard: {''.join(others)}")

    def kill(self, *pids: int) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def restless(boards: ScriptedBoards) -> Iterator[RestlessGovernor]:
    governor = RestlessGovernor(boards)
    yield governor
    governor.process.kill()
    governor.process.wait()
    assert boards.wait_for(ScriptedBoards.is_restored, TIMEOUT_S) < TIMEOUT_S


def _are_clocks_set(boards: ScriptedBoards) -> bool:
    """Whether clocks of both GPUs were set."""
    return {call[3] for call in boards.read_calls() if "Locked" in call[2]} == {0, 1}


def _run_restore(boards: ScriptedBoards) -> str:
    program = "from ekc.devices.clocks.lease import restore_all; print(*restore_all(), sep='\\n')"
    done = boards.start_python("-c", program)
    return done.communicate(timeout=20)[0]


def test_settings_are_restored_after_governing(boards: ScriptedBoards) -> None:
    governor = boards.start_python(RESTLESS_SCRIPT, "0.5", stdout=subprocess.DEVNULL)
    assert boards.wait_for(lambda b: not b.are_limits_back(), 10) < 10
    assert governor.wait(20) == 0
    assert boards.is_restored()


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_killed_governor_is_restored_by_its_guard(restless: RestlessGovernor, seed: int) -> None:
    time.sleep(0.1 * seed + 0.05)
    restless.kill(restless.process.pid)
    assert restless.boards.wait_for(ScriptedBoards.is_restored, TIMEOUT_S) < TIMEOUT_S


def test_killed_governor_with_zeusd_is_restored(boards: ScriptedBoards, tmp_path: Path) -> None:
    daemon = ScriptedZeusd(boards, tmp_path / "zeusd.sock")
    boards.extra["ZEUSD_SOCK_PATH"] = daemon.address
    boards.update_script(fail={"nvmlDeviceSetPowerManagementLimit": 4})
    try:
        governor = boards.start_python(RESTLESS_SCRIPT, "60", stdout=subprocess.DEVNULL)
        assert boards.wait_for(lambda b: not b.are_limits_back(), 20) < 20
        governor.kill()
        assert boards.wait_for(ScriptedBoards.is_restored, TIMEOUT_S) < TIMEOUT_S
        assert not boards.read_calls()  # Only the daemon has set limits.
        governor.wait()
    finally:
        daemon.close()


def test_killed_guard_is_replaced(restless: RestlessGovernor) -> None:
    restless.kill(restless.guard_pid)
    second = restless.read_next_guard_pid()
    assert second != restless.guard_pid
    restless.kill(restless.process.pid)
    assert restless.boards.wait_for(ScriptedBoards.is_restored, TIMEOUT_S) < TIMEOUT_S


def test_restore_works_after_all_are_killed(restless: RestlessGovernor) -> None:
    restless.kill(restless.guard_pid, restless.process.pid)
    restless.process.wait()
    time.sleep(0.3)
    assert not restless.boards.are_limits_back()
    output = _run_restore(restless.boards)
    assert output.count("previous settings are back") == 2
    assert restless.boards.is_restored()


def test_next_governor_restores_after_all_are_killed(boards: ScriptedBoards) -> None:
    first = RestlessGovernor(boards)
    first.kill(first.guard_pid, first.process.pid)
    first.process.wait()
    second = boards.start_python(RESTLESS_SCRIPT, "0.2", stdout=subprocess.DEVNULL)
    assert second.wait(20) == 0
    assert boards.is_restored()


def test_stopped_governor_sets_again_when_continued(restless: RestlessGovernor) -> None:
    restless.process.send_signal(signal.SIGSTOP)
    assert restless.boards.wait_for(ScriptedBoards.is_restored, TIMEOUT_S) < TIMEOUT_S
    restless.process.send_signal(signal.SIGCONT)
    assert restless.boards.wait_for(lambda b: not b.are_limits_back(), TIMEOUT_S) < TIMEOUT_S
    assert restless.read_next_guard_pid() != restless.guard_pid


def test_restore_leaves_a_running_governor_alone(restless: RestlessGovernor) -> None:
    output = _run_restore(restless.boards)
    assert output.count(f"governed by process {restless.process.pid}") == 2
    assert list(restless.boards.leases.glob("*.json"))


def test_gpu_has_one_governor(restless: RestlessGovernor) -> None:
    second = restless.boards.start_python(RESTLESS_SCRIPT, "1")
    _, error = second.communicate(timeout=20)
    assert second.returncode != 0
    assert f"is governed by process {restless.process.pid} already" in error
    assert restless.process.poll() is None


def test_permission_is_not_checked_on_a_governed_gpu(restless: RestlessGovernor) -> None:
    """The check sets the cap that it has read: a governor took it for an administrator's, and kept it."""
    program = f"""
from ekc.devices.clocks.open import choose_actuator
for _ in range(50):
    choose_actuator("auto", {restless.boards.get_uuid()!r})
"""
    checker = restless.boards.start_python("-c", program)
    assert checker.wait(30) == 0
    assert checker.pid not in {call[1] for call in restless.boards.read_calls()}


def test_unrestorable_gpu_keeps_its_lease(boards: ScriptedBoards) -> None:
    governor = RestlessGovernor(boards)
    governor.kill(governor.guard_pid, governor.process.pid)
    governor.process.wait()
    boards.update_script(lost=True)
    assert _run_restore(boards).count("GPU is lost") == 2
    assert len(list(boards.leases.glob("*.json"))) == 2
    boards.update_script(lost=False)
    assert _run_restore(boards).count("previous settings are back") == 2
    assert boards.is_restored()


def test_guard_retries_until_the_gpu_answers(restless: RestlessGovernor) -> None:
    boards = restless.boards
    boards.update_script(fail={"nvmlDeviceSetPowerManagementLimit": 10})
    restless.kill(restless.process.pid)
    time.sleep(1.0)
    boards.update_script(fail={})
    assert boards.wait_for(ScriptedBoards.is_restored, TIMEOUT_S) < TIMEOUT_S
