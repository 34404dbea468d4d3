"""`ekc govern` beside real jobs, under a scripted NVML: no job is affected, and each failure is one line."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ekc.devices.clocks import lease_file
from ekc.governor.protocols import Settings
from tests.governor.helpers import (
    extract_messages,
    python_command,
    read_until,
    start_govern,
    wait_until_governed,
)
from tests.scripted.nvml.boards import ROOT, ScriptedBoards

NO_PERMISSION, UNKNOWN = 4, 999
DENIED = {"nvmlDeviceSetPowerManagementLimit": NO_PERMISSION}
JOB = "import sys; print('to stdout'); print('to stderr', file=sys.stderr); sys.exit(7)"
PATIENT_JOB = (
    "import signal, sys, time; signal.signal(15, lambda n, f: (print('to its end'), sys.exit(7)));"
    "print('ready', flush=True); time.sleep(120)"
)
"""A job that runs until SIGTERM, for which it is prepared once it prints "ready"."""
SLEEP = "import time; time.sleep({})"


def run_govern(boards: ScriptedBoards, *words: str) -> subprocess.CompletedProcess[str]:
    """`ekc govern` to its end."""
    process = start_govern(boards, *words)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def read_first_message(process: subprocess.Popen[str]) -> str:
    """First line of the governor of a `PATIENT_JOB`, which must be the only failure; the job must end
    normally."""
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stderr.readline()
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (7, "to its end\n")
    assert "Traceback" not in err
    assert "ungoverned" not in err
    return line


def test_short_job_keeps_its_output_and_status(one: ScriptedBoards) -> None:
    done = run_govern(one, *python_command(JOB))
    assert (done.returncode, done.stdout) == (7, "to stdout\n")
    assert "to stderr\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert one.is_restored()


def test_quiet_prints_nothing(one: ScriptedBoards) -> None:
    done = run_govern(one, "--quiet", *python_command(JOB))
    assert (done.returncode, done.stdout, done.stderr) == (7, "to stdout\n", "to stderr\n")


def test_json_lines_hold_events_and_a_report(one: ScriptedBoards) -> None:
    process = start_govern(one, "--quiet", *python_command(SLEEP.format(120)))
    wait_until_governed(one, process)
    time.sleep(1.5)
    process.terminate()
    process.communicate(timeout=30)
    events = [json.loads(line) for line in (one.folder / "events").read_text().splitlines()]
    assert [e["event"] for e in events][:1] == ["Started"]
    assert events[-1]["event"] == "Report"
    (report,) = events[-1]["reports"]
    assert report["simulated"] is False
    assert report["problem"] is None
    assert report["joules"] == pytest.approx(report["seconds"] * 240, rel=0.3)


def test_given_previous_limits_are_leased(one: ScriptedBoards) -> None:
    one.set_state(0, sm_lock=[300, 1500], memory_lock=[405, 5001])
    options = ("--sm-before", "1500", "--memory-before", "5001")
    process = start_govern(one, *options, *python_command(SLEEP.format(120)))
    wait_until_governed(one, process)
    lease = lease_file.read_lease(one.leases / f"{one.get_uuid()}.json")
    process.terminate()
    process.communicate(timeout=30)
    assert lease is not None
    assert lease.previous == Settings(sm_mhz=1500, memory_mhz=5001, power_w=280.0)
    assert one.read_limits() == ([300, 1500], [405, 5001], 280_000)


def test_missing_permission_leads_to_advice(one: ScriptedBoards) -> None:
    one.update_script(fail=DENIED)
    line = read_first_message(start_govern(one, *python_command(PATIENT_JOB)))
    assert "may not set clocks here, so this is advice only" in line
    assert "CAP_SYS_ADMIN" in line
    assert one.is_restored()


def test_requested_actuator_without_permission_is_reported(one: ScriptedBoards) -> None:
    one.update_script(fail=DENIED)
    line = read_first_message(start_govern(one, "--actuator", "nvml", *python_command(PATIENT_JOB)))
    assert "CAP_SYS_ADMIN" in line
    assert line.endswith("the job runs ungoverned\n")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ({"lost": True}, "GPU is lost"),
        ({"fail": {"nvmlInit": 9}}, "no NVIDIA driver here"),
        ({"fail": {"nvmlDeviceGetSupportedMemoryClocks": UNKNOWN}}, "Unknown Error"),
    ],
)
def test_unusable_gpu_is_reported(one: ScriptedBoards, script: dict[str, object], words: str) -> None:
    one.update_script(**script)
    line = read_first_message(start_govern(one, "--actuator", "nvml", *python_command(PATIENT_JOB)))
    assert words in line
    assert line.endswith("the job runs ungoverned\n")


@pytest.mark.parametrize("words", [(), ("--advise",)])
def test_split_gpu_is_not_governed(one: ScriptedBoards, words: tuple[str, ...]) -> None:
    one.update_board(0, mig=[1, 1])
    line = read_first_message(start_govern(one, *words, *python_command(PATIENT_JOB)))
    assert line == (
        "ekc govern: GPU 0 is split by MIG: its clocks and its energy are those of all parts; "
        "govern a whole GPU; the job runs ungoverned\n"
    )
    assert not one.read_calls()


@pytest.mark.parametrize("words", [(), ("--actuator", "nvml")])
def test_job_runs_without_a_driver_for_a_named_gpu(one: ScriptedBoards, words: tuple[str, ...]) -> None:
    one.update_script(fail={"nvmlInit": 9})
    process = start_govern(one, "--gpu", "0", *words, *python_command(PATIENT_JOB))
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "ready\n"
    output = next(line for line in process.stderr if "the job runs ungoverned" in line)
    assert "no NVIDIA driver here" in output
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (7, "to its end\n")


def test_gpu_lost_while_governed_is_reported_once(one: ScriptedBoards) -> None:
    process = start_govern(one, *python_command(SLEEP.format(5) + "; print('done')"))
    wait_until_governed(one, process)
    one.update_script(lost=True)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "done\n")
    assert sum("GPU is lost" in line and "goes on ungoverned" in line for line in extract_messages(err)) == 1
    assert "Traceback" not in err


def test_second_governor_of_a_gpu_is_refused(one: ScriptedBoards) -> None:
    first = start_govern(one, *python_command(SLEEP.format(120)))
    wait_until_governed(one, first)
    line = read_first_message(start_govern(one, "--json", "others", *python_command(PATIENT_JOB)))
    assert f"governed by process {first.pid} already" in line
    assert line.endswith("the job runs ungoverned\n")
    first.terminate()
    first.communicate(timeout=30)
    assert one.is_restored()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_job(one: ScriptedBoards, number: signal.Signals) -> None:
    code = (
        f"import signal, sys, time; signal.signal({number:d}, lambda n, f: (print('got it'), sys.exit(5)));"
        "print('ready', flush=True); time.sleep(120)"
    )
    process = start_govern(one, *python_command(code))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (5, "got it\n")
    assert one.is_restored()


def test_killed_job_has_the_exit_status_of_shells(one: ScriptedBoards) -> None:
    process = start_govern(
        one, *python_command("import os, time; print(os.getpid(), flush=True); time.sleep(120)")
    )
    assert process.stdout is not None
    job = int(process.stdout.readline())
    wait_until_governed(one, process)
    os.kill(job, signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode == 137
    assert one.is_restored()


@pytest.mark.parametrize("stdin", ["/dev/tty", "/dev/null"])
def test_ctrl_c_on_a_terminal_reaches_the_job_once(one: ScriptedBoards, stdin: str) -> None:
    code = (
        "import signal, time; got = []; signal.signal(2, lambda n, f: got.append(n))\n"
        "print('ready', flush=True)\n"
        "while not got: time.sleep(0.05)\n"
        "time.sleep(0.5); print('interrupts', len(got), flush=True)"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(one.folder)
        os.dup2(os.open(stdin, os.O_RDWR), 0)
        words = [sys.executable, "-m", "ekc", "govern", *python_command(code)]
        os.execve(sys.executable, words, one.environment)
    read_until(terminal, "ready")
    os.write(terminal, b"\x03")
    read_until(terminal, "interrupts 1")
    os.waitpid(pid, 0)


def test_terminal_shows_a_status_line(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "ekc", "govern", "--simulate", "compute", "--minutes", "3"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, words, os.environ | {"TERM": "xterm", "PYTHONPATH": str(ROOT)})
    observed = ""
    with contextlib.suppress(OSError):  # The end of a terminal.
        while text := os.read(terminal, 4096).decode(errors="replace"):
            observed += text
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert " MHz; " in observed
    assert "ekc govern: report" in observed


@pytest.mark.parametrize(
    ("words", "key", "hidden", "shown"),
    [
        (("--simulate", "no"), b"", b"\x1b[?25l", b"\x1b[?25h"),
        (("--simulate", "compute", "--minutes", "1440"), b"\x03", b"\x1b[?25l", b"\x1b[?25h"),
        (("--", "/no/such/command"), b"", b"\x1b[22;2t", b"\x1b[23;2t"),
    ],
)
def test_terminal_is_restored(words: tuple[str, ...], key: bytes, hidden: bytes, shown: bytes) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(
            signal.SIGINT, signal.SIG_DFL
        )  # Processes in the background may have inherited an ignored signal.
        command = [sys.executable, "-m", "ekc", "govern", *words]
        os.execve(sys.executable, command, os.environ | {"TERM": "xterm", "PYTHONPATH": str(ROOT)})
    observed = b""
    with contextlib.suppress(OSError):  # The end of a terminal.
        while text := os.read(terminal, 4096):
            observed += text
            if key and b" MHz; " in observed:
                os.write(terminal, key)
                key = b""
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (2, 130)
    assert observed.count(hidden) == observed.count(shown) == 1


def test_job_inherits_stdin_and_open_files(one: ScriptedBoards) -> None:
    job = "import os, sys; print(sys.stdin.read(), os.read({}, 5).decode())"
    readable, writable = os.pipe()
    os.write(writable, b"a pipe")
    words = ("-m", "ekc", "govern", "--quiet", *python_command(job.format(readable)))
    process = one.start_python(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(readable,))
    out, _ = process.communicate("typed", timeout=30)
    assert out == "typed a pip\n"


def test_running_process_is_governed(one: ScriptedBoards) -> None:
    job = subprocess.Popen([sys.executable, "-c", SLEEP.format(120)])
    process = start_govern(one, "--pid", str(job.pid))
    wait_until_governed(one, process)
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "ekc govern: report" in err
    assert job.poll() is None
    job.kill()
    job.wait()
    assert one.is_restored()


def test_nohup_is_respected(one: ScriptedBoards) -> None:
    job = subprocess.Popen([sys.executable, "-c", SLEEP.format(120)])
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    process = start_govern(one, "--pid", str(job.pid))
    signal.signal(signal.SIGHUP, before)
    wait_until_governed(one, process)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 0
    job.kill()
    job.wait()
    assert one.is_restored()


def test_running_process_that_cannot_be_governed_is_a_failure(one: ScriptedBoards) -> None:
    one.update_script(lost=True)
    done = run_govern(one, "--pid", str(os.getpid()), "--actuator", "nvml")
    assert done.returncode == 2


def test_each_gpu_has_its_own_loop(boards: ScriptedBoards) -> None:
    process = start_govern(
        boards, "--each", "--gpu", "0", "--gpu", boards.get_uuid(1), *python_command(PATIENT_JOB)
    )
    events = boards.folder / "events"
    assert boards.wait_for(lambda _: events.exists() and events.read_text().count("Started") == 2, 60) < 60
    process.terminate()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 7
    assert all(f"GPU {i}: governing through NVML, GPU {i} (Scripted GPU)" in err for i in range(2))
    assert "GPUs" not in err
    assert err.count("  governed") == 2


def test_unknown_gpu_number_is_refused(boards: ScriptedBoards) -> None:
    done = run_govern(boards, "--gpu", "2", *python_command(JOB))
    assert (done.returncode, done.stdout) == (2, "")
    assert "--gpu: no GPU '2'; GPUs are 0, 1, or UUIDs" in done.stderr


def test_restore_without_leases_says_so(one: ScriptedBoards) -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = one.start_python("-m", "ekc", "govern", "--restore", **pipes)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.startswith("nothing to restore")


def test_gpus_of_a_job_are_found_and_set_alike(boards: ScriptedBoards) -> None:
    program = str(ROOT / "tests" / "governor" / "settled_soon.py")
    words = ("govern", "--json", "events", *python_command(PATIENT_JOB))
    process = boards.start_python(program, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    from ekc.governor.live.job import list_process_family

    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    child = max(list_process_family(process.pid) - {process.pid})
    # Both at once: with the short wait of this test the governor might otherwise find only one.
    gpus = json.loads(boards.file.read_text())["gpus"]
    boards.update_script(gpus=[gpu | {"pids": [child]} for gpu in gpus])
    wait_until_governed(boards, process)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert "GPUs 0, 1: governing through 2 GPUs alike" in err
    assert process.returncode == 7
