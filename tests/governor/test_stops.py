"""Stops of `ekc govern`: previous settings are in force while it is stopped, and the job stops with it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ekc.governor.live.governed_job import STOP_TIMEOUT_S
from tests.governor.helpers import (
    end_job,
    find_child_pid,
    list_children,
    python_command,
    read_process_state,
    start_governing,
    wait_until,
    wait_until_ready,
)
from tests.scripted.nvml.boards import ScriptedBoards

RESTLESS_SCRIPT = str(Path(__file__).with_name("restless_govern.py"))
JOB_WITH_CHILD = """
import subprocess, sys, time
pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
child = subprocess.Popen(['cat'], process_group={group}, **pipes)  # Ends with its parent.
print('ready', flush=True)
time.sleep(120)
"""
DEAF_JOB = """
import signal, time
signal.signal(signal.SIGTSTP, lambda n, f: print('heard', flush=True))
print('ready', flush=True)
time.sleep(120)
"""


def start_restless(boards: ScriptedBoards, code: str, **options: object) -> subprocess.Popen[str]:
    """A governor that sets random limits all the time, beside a job that is ready."""
    process = wait_until_ready(boards.start_python(RESTLESS_SCRIPT, *python_command(code)[1:], **options))
    wait_until(lambda: not boards.are_limits_back())
    return process


def check_stop_and_continue(
    boards: ScriptedBoards, process: subprocess.Popen[str], send: Callable[[int, int], None], number: int
) -> None:
    """Stop and continue a restless governor and its job."""
    job = find_child_pid(process.pid, "ready")
    members = [process.pid, job, *list_children(job)]
    send(process.pid, number)
    wait_until(lambda: read_process_state(process.pid) == "T")
    assert boards.is_restored()
    assert boards.read_calls()[-1][1] == process.pid  # The governor itself, not its guard.
    wait_until(lambda: all(read_process_state(pid) == "T" for pid in members))
    send(process.pid, signal.SIGCONT)
    wait_until(lambda: not any(read_process_state(pid) == "T" for pid in members))
    wait_until(lambda: not boards.are_limits_back())


@pytest.mark.parametrize(
    ("send", "number"),
    [
        (os.killpg, signal.SIGTSTP),
        pytest.param(os.kill, signal.SIGTSTP, marks=pytest.mark.exhaustive),
        pytest.param(os.kill, signal.SIGTTIN, marks=pytest.mark.exhaustive),
        pytest.param(os.killpg, signal.SIGTTIN, marks=pytest.mark.exhaustive),
    ],
)
def test_limits_are_back_while_governor_and_job_are_stopped(
    one: ScriptedBoards, send: Callable[[int, int], None], number: signal.Signals
) -> None:
    # In the session of the test: the kernel does not stop orphaned process groups.
    process = start_restless(one, JOB_WITH_CHILD.format(group="None"), process_group=0)
    check_stop_and_continue(one, process, send, number)
    assert end_job(process)[0] == 143
    assert one.is_restored()


def test_signal_to_the_governor_stops_a_batch_job_too(one: ScriptedBoards) -> None:
    """The kernel drops stop signals for groups without a shell, as that of a child with its own group."""
    process = start_restless(one, JOB_WITH_CHILD.format(group="0"), start_new_session=True)
    check_stop_and_continue(one, process, os.kill, signal.SIGTSTP)
    assert end_job(process)[0] == 143


def test_stop_that_is_over_stops_nothing(one: ScriptedBoards) -> None:
    """Both signals come before the governor looks for them."""
    code = (
        "from ekc.governor.live.governed_job import CommandJob\n"
        "job = CommandJob(['sleep', '60'])\n"
        "print('ready', flush=True)\n"
        "sum(range(10**8))\n"
        "print('called', flush=True)\n"
        "job.wait()\n"
    )
    process = wait_until_ready(one.start_python("-c", code, start_new_session=True))
    command = find_child_pid(process.pid, "sleep")
    process.send_signal(signal.SIGTSTP)
    time.sleep(0.1)  # The kernel drops a stop that is not delivered yet.
    process.send_signal(signal.SIGCONT)
    is_readable = select.select([process.stdout], [], [], 60)[0]
    if not is_readable:
        process.kill()
    assert is_readable, "the governor is stopped"
    assert process.stdout.readline() == "called\n"
    time.sleep(1.5 * STOP_TIMEOUT_S)
    assert [read_process_state(pid) for pid in (process.pid, command)] == ["S", "S"]
    assert end_job(process)[0] == 0
    assert not Path(f"/proc/{command}").exists()


LATE_STOP = """
import os, signal, subprocess, sys
from ekc.processes.group_signals import stop_beside
command, kill = subprocess.Popen(["sleep", "60"]), os.kill
command.send_signal(signal.SIGSTOP)
os.waitpid(command.pid, os.WUNTRACED)
def kill_late(pid, number):
    os.killpg(0, signal.SIGCONT)
    kill(command.pid, int(sys.argv[1]))
    kill(pid, number)
os.kill = kill_late
stop_beside(command.pid)
print("continued", flush=True)
command.kill()
"""


@pytest.mark.parametrize("number", [signal.SIGCONT, signal.SIGKILL])
def test_governor_is_not_stopped_alone(number: signal.Signals) -> None:
    """The command is continued, or killed, between the governor's last look at it and its own stop."""
    words = [sys.executable, "-c", LATE_STOP, str(int(number))]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=60, start_new_session=True)
    assert done.stdout == "continued\n"


ATTACHED_GOVERNOR = """
import contextlib, os, subprocess, sys
from ekc.governor.live.governed_job import AttachedJob
def send(name):
    subprocess.run(["sh", "-c", f"kill -{name} {os.getpid()}"], check=True)
@contextlib.contextmanager
def pause():
    send("CONT")
    yield
    job.stop_waiting()
job = AttachedJob(os.getppid())
job.pause = pause
send("TSTP")
sys.exit(job.wait())
"""


def test_governor_of_a_running_process_that_is_continued_early_is_not_stopped() -> None:
    """SIGCONT comes while it puts the settings back."""
    done = subprocess.run([sys.executable, "-c", ATTACHED_GOVERNOR], timeout=60, start_new_session=True)
    assert done.returncode == 0


@pytest.mark.exhaustive
def test_batch_system_that_stops_after_a_warning_finds_the_limits_back(one: ScriptedBoards) -> None:
    """Slurm sends SIGTSTP to all processes of a job, and SIGSTOP later: governor, guard and job at once."""
    process = start_restless(one, DEAF_JOB, start_new_session=True)
    members = [process.pid, *list_children(process.pid)]
    for pid in members:
        os.kill(pid, signal.SIGTSTP)
    assert process.stdout.readline() == "heard\n"
    wait_until(one.is_restored)
    for pid in members:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: read_process_state(process.pid) == "T")
    assert one.is_restored()
    for pid in members:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not one.are_limits_back())
    assert end_job(process)[0] == 143


@pytest.mark.exhaustive
def test_job_that_ignores_a_stop_is_governed_on(one: ScriptedBoards) -> None:
    process = start_restless(one, DEAF_JOB, start_new_session=True)
    process.send_signal(signal.SIGTSTP)
    assert process.stdout.readline() == "heard\n"
    wait_until(one.is_restored)
    wait_until(lambda: not one.are_limits_back())
    assert read_process_state(process.pid) != "T"
    assert end_job(process)[0] == 143


@pytest.mark.exhaustive
def test_stop_while_the_driver_hangs(one: ScriptedBoards) -> None:
    """The governor stops all the same; its guard puts the settings back."""
    process = start_restless(one, JOB_WITH_CHILD.format(group="None"), process_group=0)
    one.update_script(hang=["nvmlDeviceSetPowerManagementLimit"], hanging_pid=process.pid)
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: read_process_state(process.pid) == "T")
    wait_until(one.is_restored)
    one.update_script(hang=[])
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: not one.are_limits_back())
    assert end_job(process)[0] == 143


def test_stop_is_told_and_left_out(one: ScriptedBoards) -> None:
    process = start_governing(one, *python_command("import time; time.sleep(120)"))
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: read_process_state(process.pid) == "T")
    time.sleep(2.5)
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: "Interrupted" in (one.folder / "events").read_text())
    status, _, err = end_job(process)
    assert status == 143
    assert "as if stopped; a reading meanwhile is taken again" in err


@pytest.mark.exhaustive
def test_governor_of_a_running_process_stops_alone(one: ScriptedBoards) -> None:
    with subprocess.Popen(["sleep", "300"]) as job:
        process = start_governing(one, "--pid", str(job.pid))
        process.send_signal(signal.SIGTSTP)
        wait_until(lambda: read_process_state(process.pid) == "T")
        assert one.is_restored()
        assert read_process_state(job.pid) == "S"
        process.send_signal(signal.SIGCONT)
        wait_until(one.has_lease)
        process.send_signal(signal.SIGABRT)
        assert process.wait(60) == 0
        assert job.poll() is None
        job.kill()
    assert one.is_restored()
