"""Signals to `ekc govern` and to its process group: each reaches the job once, and no job outlives it."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.limits import NvmlLimits
from ekc.processes.group_signals import EXTERNAL_SIGNALS, MEMBER_COMMAND, WAITED_SIGNALS
from tests.governor.helpers import (
    end_job,
    extract_messages,
    find_child_pid,
    list_children,
    python_command,
    read_process_state,
    read_until,
    start_govern,
    wait_until,
    wait_until_governed,
    wait_until_ready,
)
from tests.scripted.nvml.boards import ScriptedBoards

COUNTING_JOB = """
import os, signal, sys
for number in {numbers}:  # Not print: a second signal may come while the first is printed.
    signal.signal(number, lambda n, f: os.write(1, b'%d\\n' % n))
print('ready', flush=True)
sys.stdin.readline()
"""
SAVING_JOB = """
import signal, sys, time
def save(number, frame):
    signal.signal(number, signal.SIG_DFL)
    time.sleep(0.5)
    print('saved', flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
time.sleep(120)
"""
RUNNING_JOB = "import time; print('ready', flush=True); time.sleep(120)"
HANDLED_SIGNALS = [
    n for n in EXTERNAL_SIGNALS if n <= signal.SIGRTMIN and n not in (signal.SIGTSTP, signal.SIGCONT)
]


@pytest.mark.parametrize(
    ("numbers", "sends"),
    [
        (HANDLED_SIGNALS, (os.kill, os.killpg, os.kill)),
        ([signal.SIGUSR1, signal.SIGTERM], (os.killpg,) * 8),
        (WAITED_SIGNALS, (os.kill, os.killpg)),
    ],
)
def test_signals_reach_the_job_once(
    one: ScriptedBoards, numbers: list[int], sends: tuple[Callable[[int, int], None], ...]
) -> None:
    job = python_command(COUNTING_JOB.format(numbers=[int(n) for n in numbers]))
    words = ("-m", "ekc", "govern", "--quiet", *job)
    process = wait_until_ready(one.start_python(*words, start_new_session=True, stdin=subprocess.PIPE))
    last = threading.Timer(90, os.killpg, (process.pid, signal.SIGKILL))
    last.start()
    observed: Counter[int] = Counter()
    for number in numbers:
        for send in sends:
            member = find_child_pid(process.pid, MEMBER_COMMAND[0])
            send(process.pid, number)
            observed[int(process.stdout.readline())] += 1
            if send is os.killpg:  # The job has it at once. The governor replaces its member when it knows.
                wait_until(lambda old=member: old not in list_children(process.pid))
    process.stdin.write("\n")
    process.stdin.close()
    observed.update(int(line) for line in process.stdout)
    assert process.wait(60) == 0
    last.cancel()
    assert observed == dict.fromkeys(numbers, len(sends))


REPEATING_GOVERNOR = """
import os, signal, sys
from ekc.governor.live.governed_job import CommandJob
from ekc.processes import group_signals
starts, case, test = 0, sys.argv[1], int(sys.argv[2])
install = CommandJob._install_handlers
start, forward = group_signals._start_member, CommandJob._forward_pending_signals
def start_member():
    global starts
    starts += 1
    if case == 'second signal' and starts == 2:
        os.read(test, 1)  # The job has printed the first signal: a job receives two at once as one.
        os.killpg(0, signal.SIGUSR1)
    return start()
def forward_pending_signals(job):
    has_signals = bool(job._pending_signals)
    forward(job)
    if has_signals:
        os.write(1, b'handled\\n')
def install_handlers(job, ignored):
    if case == 'slow start' and ignored:
        os.read(test, 1)  # The job has printed the signal.
    install(job, ignored)
CommandJob._install_handlers = install_handlers
group_signals._start_member, CommandJob._forward_pending_signals = start_member, forward_pending_signals
job = CommandJob([sys.executable, '-c', sys.argv[3]])
sys.exit(job.wait())
"""


@pytest.mark.parametrize("case", ["one signal", "second signal", "slow start"])
def test_signals_to_the_group_are_not_passed_on(case: str) -> None:
    """A second signal comes just before the first is forgotten, or the first just after the job has started:
    the job has them from the group itself. One that comes later to the governor alone is passed on."""
    usr1 = signal.SIGUSR1
    reading, writing = os.pipe()
    job = COUNTING_JOB.format(numbers=[int(usr1)])
    words = [sys.executable, "-c", REPEATING_GOVERNOR, case, str(reading), job]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "pass_fds": [reading]}
    process = wait_until_ready(subprocess.Popen(words, text=True, start_new_session=True, **pipes))
    os.killpg(process.pid, usr1)
    lines = [process.stdout.readline()]
    os.write(writing, b"x")
    count = 2 if case == "second signal" else 1
    lines += [process.stdout.readline() for _ in range(count)]
    assert Counter(lines) == {"handled\n": 1, f"{usr1}\n": count}
    process.send_signal(usr1)
    assert {process.stdout.readline() for _ in range(2)} == {"handled\n", f"{usr1}\n"}
    out, _ = process.communicate("\n", timeout=60)
    assert (process.returncode, out) == (0, "")
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("send", ["group", "timeout", "each"])
def test_sigterm_is_not_sent_twice(one: ScriptedBoards, send: str) -> None:
    """SIGTERM by `kill -- -PGID`, by timeout(1), which sends twice, and by a batch system, to each
    process."""
    words = [sys.executable, "-m", "ekc", "govern", *python_command(SAVING_JOB)]
    around = ["timeout", "100"] if send == "timeout" else []
    process = subprocess.Popen(
        [*around, *words],
        env=one.environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=one.folder,
    )
    wait_until_ready(process)
    if send == "group":
        os.killpg(process.pid, signal.SIGTERM)
    elif send == "timeout":
        process.terminate()
    else:
        for pid in (process.pid, *list_children(process.pid)):
            os.kill(pid, signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert out == "saved\n"
    assert process.returncode == 3


@pytest.mark.parametrize(
    ("number", "send"), [(signal.SIGQUIT, os.killpg), (signal.SIGRTMIN, os.kill), (signal.SIGSEGV, os.kill)]
)
def test_signal_that_ends_the_job_is_the_exit_status(
    one: ScriptedBoards, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    process = wait_until_ready(start_govern(one, *python_command(RUNNING_JOB)))
    wait_until_governed(one, process)
    job = find_child_pid(process.pid, "ready")
    send(process.pid, number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert not Path(f"/proc/{job}").exists()
    assert one.is_restored()


def test_governor_stops_and_continues_with_the_job(one: ScriptedBoards) -> None:
    words = ("-m", "ekc", "govern", "--quiet", *python_command(RUNNING_JOB))
    # In the session of the test: the kernel does not stop orphaned process groups.
    process = wait_until_ready(one.start_python(*words, process_group=0))
    job = find_child_pid(process.pid, "ready")
    for send in (os.kill, os.killpg):
        send(process.pid, signal.SIGTSTP)
        wait_until(lambda: read_process_state(job) == read_process_state(process.pid) == "T")
        send(process.pid, signal.SIGCONT)
        wait_until(lambda: "T" not in (read_process_state(job), read_process_state(process.pid)))
        time.sleep(0.15)
    assert end_job(process)[0] == 143


SHELL_JOB = """
import signal, time
got = []
signal.signal(2, lambda n, f: got.append(n))
signal.signal(signal.SIGCONT, lambda n, f: print('gone', 'on', flush=True))
print('re' + 'ady', flush=True)
while not got: time.sleep(0.05)
time.sleep(0.3)
print('inter' + 'rupts', len(got), flush=True)
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash, whose job control is tested")
def test_job_control_of_an_interactive_shell(one: ScriptedBoards) -> None:
    one.update_script(fail={"nvmlInit": 9})
    (one.folder / "job.py").write_text(SHELL_JOB)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(one.folder)
        environment = one.environment | {"PS1": "$ ", "TERM": "dumb", "HISTFILE": ""}
        os.execvpe("bash", ["bash", "--norc", "--noediting", "-i"], environment)
    govern = f"{sys.executable} -m ekc govern"
    os.write(terminal, f"{govern} -- {sys.executable} job.py; echo sta''tus $?\n".encode())
    read_until(terminal, "ready")
    os.write(terminal, b"\x1a")
    read_until(terminal, "Stopped")
    os.write(terminal, b"fg\n")
    read_until(terminal, "gone on")
    os.write(terminal, b"\x03")
    read_until(terminal, "interrupts 1")
    # A process that reads from the terminal in the background is stopped, and runs on in the foreground.
    os.write(terminal, f"{govern} --quiet -- head -n 1 &\n".encode())
    time.sleep(1)
    wait_for_stopped(terminal)
    os.write(terminal, b"fg\n")
    read_until(terminal, "head -n 1")
    os.write(terminal, b"typed\n")
    read_until(terminal, "typed\r\ntyped")
    # Lines of the governor stop no job, even where the terminal stops writers in the background.
    os.write(terminal, f"stty tostop; {govern} -- sh -c 'sleep 1; > done' &\n".encode())
    wait_until((one.folder / "done").exists)
    os.write(terminal, b"exit\n")
    os.close(terminal)
    os.waitpid(pid, 0)


def wait_for_stopped(terminal: int) -> None:
    """Wait until a shell reports the state of its job before a prompt."""
    observed = ""
    while "Stopped" not in observed:
        os.write(terminal, b"jobs\n")
        time.sleep(0.2)
        observed += os.read(terminal, 4096).decode()


OPEN_FILES_JOB = """
import os, sys
for number in range(3):
    try:
        os.fstat(number)
    except OSError:
        open(f'closed {number}', 'w').close()
sys.exit(7)
"""


def test_job_inherits_the_standard_files(one: ScriptedBoards) -> None:
    (one.folder / "job.py").write_text(OPEN_FILES_JOB)
    command = f"{sys.executable} -m ekc govern --json - -- {sys.executable} ../job.py"
    redirections = {"2>&-": "2", "0<&- 1>&- 2>&-": "012", "2>/dev/full": ""}
    processes = {}
    for redirected, closed in redirections.items():
        folder = one.folder / f"only {closed}"
        folder.mkdir()
        words = ["sh", "-c", f"{command} {redirected}"]
        processes[folder] = subprocess.Popen(words, env=one.environment, cwd=folder)
    for (folder, process), closed in zip(processes.items(), redirections.values(), strict=True):
        assert process.wait(60) == 7
        assert sorted(path.name for path in folder.glob("closed *")) == [f"closed {n}" for n in closed]


def test_closed_reader_changes_no_exit_status(one: ScriptedBoards) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    words = ("-m", "ekc", "govern", "--json", "-", *python_command("import sys; sys.exit(7)"))
    devnull = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [one.start_python(*words, **devnull | {stream: writing}) for stream in ("stdout", "stderr")]
    os.close(writing)
    assert [process.wait(60) for process in processes] == [7, 7]


def test_only_sigkill_and_sigstop_reach_a_guard(here: ScriptedBoards) -> None:
    with LeaseKeeper([NvmlLimits(here.get_uuid())]) as keeper:
        guard = keeper.guard_pid
        for number in EXTERNAL_SIGNALS:
            os.kill(guard, number)
        time.sleep(0.2)
        assert keeper.guard_pid == guard
        assert read_process_state(guard) == "S"


def test_signals_are_passed_on_without_the_group_detector(one: ScriptedBoards) -> None:
    one.extra["PATH"] = "/nowhere"
    status, out, err = end_job(wait_until_ready(start_govern(one, *python_command(SAVING_JOB))))
    assert (status, out) == (3, "saved\n")
    assert not [line for line in extract_messages(err) if "bug" in line]
