"""`ekc govern` beside real jobs, under a scripted NVML: no job is affected, and each failure is one line."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from ekc.devices.clocks import lease_file
from ekc.governor.protocols import Settings
from ekc.processes.process_facts import list_process_family
from tests.governor.helpers import (
    end_job,
    extract_messages,
    python_command,
    read_until,
    run_govern,
    start_govern,
    start_governing,
    wait_until_governed,
    wait_until_ready,
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


def read_first_message(process: subprocess.Popen[str]) -> str:
    """First line of the governor of a `PATIENT_JOB`, which must be the only failure; the job must end
    normally."""
    line = process.stderr.readline()
    status, out, err = end_job(wait_until_ready(process))
    assert (status, out) == (7, "to its end\n")
    assert "Traceback" not in err
    assert "ungoverned" not in err
    return line


def test_short_job_keeps_its_output_and_status(one: ScriptedBoards) -> None:
    status, out, err = run_govern(one, *python_command(JOB))
    assert (status, out) == (7, "to stdout\n")
    assert "to stderr\n" in err
    assert "Traceback" not in err
    assert one.is_restored()


def test_quiet_prints_nothing(one: ScriptedBoards) -> None:
    assert run_govern(one, "--quiet", *python_command(JOB)) == (7, "to stdout\n", "to stderr\n")


def test_json_lines_hold_events_and_a_report(one: ScriptedBoards) -> None:
    process = start_governing(one, "--quiet", *python_command(SLEEP.format(120)))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    end_job(process)
    events = [json.loads(line) for line in (one.folder / "events").read_text().splitlines()]
    assert [e["event"] for e in events][:1] == ["Started"]
    assert events[-1]["event"] == "Report"
    (report,) = events[-1]["reports"]
    assert report["simulated"] is False
    assert report["problem"] is None
    assert report["joules"] == pytest.approx(report["seconds"] * 240, rel=0.3)


def test_metrics_of_a_real_job_are_scraped(one: ScriptedBoards) -> None:
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    process = start_governing(one, "--metrics", str(port), *python_command(SLEEP.format(120)))

    def read_watts(_: object) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            families = {x.name: x.samples for x in text_string_to_metric_families(answer.read().decode())}
        return float(families["ekc_govern_power_watts"][0].value)

    assert one.wait_for(lambda _: read_watts(_) > 0, 60) < 60
    assert 100 < read_watts(None) < 400
    end_job(process)


def test_given_previous_limits_are_leased(one: ScriptedBoards) -> None:
    one.set_state(0, sm_lock=[300, 1500], memory_lock=[405, 5001])
    options = ("--sm-before", "1500", "--memory-before", "5001")
    process = start_governing(one, *options, *python_command(SLEEP.format(120)))
    lease = lease_file.read_lease(one.leases / f"{one.get_uuid()}.json")
    end_job(process)
    assert lease.previous == Settings(sm_mhz=1500, memory_mhz=5001, power_w=280.0)
    assert one.read_limits() == ([300, 1500], [405, 5001], 280_000)


def test_missing_permission_leads_to_advice(one: ScriptedBoards) -> None:
    one.update_script(fail=DENIED)
    line = read_first_message(start_govern(one, *python_command(PATIENT_JOB)))
    assert "may not set clocks here, so this is advice only" in line
    assert "CAP_SYS_ADMIN" in line
    assert one.is_restored()


def test_job_that_cannot_be_governed_runs_on(tmp_path: Path) -> None:
    """One line says why; the governors run side by side."""
    scripts = {
        "CAP_SYS_ADMIN": {"fail": DENIED},
        "GPU is lost": {"lost": True},
        "no NVIDIA driver here": {"fail": {"nvmlInit": 9}},
        "Unknown Error": {"fail": {"nvmlDeviceGetSupportedMemoryClocks": UNKNOWN}},
    }
    processes = {}
    for number, (words, script) in enumerate(scripts.items()):
        (tmp_path / str(number)).mkdir()
        boards = ScriptedBoards(tmp_path / str(number))
        boards.update_script(**script)
        processes[words] = start_govern(boards, "--actuator", "nvml", *python_command(PATIENT_JOB))
    for words, process in processes.items():
        line = read_first_message(process)
        assert words in line
        tries_again = ", next try in 2 s" if words == "Unknown Error" else ""
        assert line.endswith(f"the job runs ungoverned{tries_again}\n")


def test_reason_is_given_where_nothing_was_measured(tmp_path: Path) -> None:
    """The same reason for a job that ends before the governor could say it beside the job."""
    reasons = {
        "no NVIDIA driver here": (1, 9),
        "the NVIDIA driver sees no GPU": (0, None),
        "too short": (2, None),
    }
    for number, (words, (count, failure)) in enumerate(reasons.items()):
        (tmp_path / str(number)).mkdir()
        boards = ScriptedBoards(tmp_path / str(number), count)
        if failure:
            boards.update_script(fail={"nvmlInit": failure})
        status, _, err = run_govern(boards, *python_command(JOB))
        (line,) = [x for x in extract_messages(err) if "nothing was measured" in x]
        assert status == 7
        assert line.startswith("ekc govern: nothing was measured, so there is no report: ")
        assert words in line


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
    process = wait_until_ready(start_govern(one, "--gpu", "0", *words, *python_command(PATIENT_JOB)))
    output = next(line for line in process.stderr if "the job runs ungoverned" in line)
    assert "no NVIDIA driver here" in output
    assert end_job(process)[:2] == (7, "to its end\n")


def test_gpu_lost_while_governed_is_reported_once(one: ScriptedBoards) -> None:
    process = start_governing(one, *python_command(PATIENT_JOB))
    one.update_script(lost=True)
    line = next(line for line in process.stderr if "GPU is lost" in line)
    status, out, err = end_job(process)
    assert (status, out) == (7, "ready\nto its end\n")
    assert "goes on ungoverned" in line
    assert not [line for line in extract_messages(err) if "GPU is lost" in line]
    assert "Traceback" not in err


def test_second_governor_of_a_gpu_is_refused(one: ScriptedBoards) -> None:
    first = start_governing(one, *python_command(SLEEP.format(120)))
    line = read_first_message(start_govern(one, "--json", "others", *python_command(PATIENT_JOB)))
    assert f"governed by process {first.pid} already" in line
    end_job(first)
    assert one.is_restored()


def test_interrupt_reaches_the_job(one: ScriptedBoards) -> None:
    code = (
        "import signal, sys, time; signal.signal(2, lambda n, f: (print('got it'), sys.exit(5)));"
        "print('ready', flush=True); time.sleep(120)"
    )
    process = wait_until_ready(start_govern(one, *python_command(code)))
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (5, "got it\n")
    assert one.is_restored()


def test_killed_job_has_the_exit_status_of_shells(one: ScriptedBoards) -> None:
    process = start_governing(
        one, *python_command("import os, time; print(os.getpid(), flush=True); time.sleep(120)")
    )
    os.kill(int(process.stdout.readline()), signal.SIGKILL)
    process.communicate(timeout=30)
    assert process.returncode == 137
    assert one.is_restored()


def start_on_terminal(words: tuple[str, ...], folder: Path = ROOT, **environment: str) -> tuple[int, int]:
    """Process id and terminal of an `ekc govern` that has a terminal of its own."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        if stdin := environment.pop("STDIN", None):
            os.dup2(os.open(stdin, os.O_RDWR), 0)
        command = [sys.executable, "-m", "ekc", "govern", *words]
        os.execve(sys.executable, command, os.environ | {"PYTHONPATH": str(ROOT)} | environment)
    return pid, terminal


@pytest.mark.parametrize("stdin", ["/dev/tty", "/dev/null"])
def test_ctrl_c_on_a_terminal_reaches_the_job_once(one: ScriptedBoards, stdin: str) -> None:
    code = (
        "import signal, time; got = []; signal.signal(2, lambda n, f: got.append(n))\n"
        "print('ready', flush=True)\n"
        "while not got: time.sleep(0.05)\n"
        "time.sleep(0.5); print('interrupts', len(got), flush=True)"
    )
    pid, terminal = start_on_terminal(python_command(code), one.folder, **one.environment, STDIN=stdin)
    read_until(terminal, "ready")
    os.write(terminal, b"\x03")
    read_until(terminal, "interrupts 1")
    os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("words", "key", "hidden", "shown"),
    [
        (("--simulate", "no"), b"", b"\x1b[?25l", b"\x1b[?25h"),
        (("--simulate", "compute", "--minutes", "3"), b"", b"\x1b[?25l", b"\x1b[?25h"),
        (("--simulate", "compute", "--minutes", "1440"), b"\x03", b"\x1b[?25l", b"\x1b[?25h"),
        (("--", "/no/such/command"), b"", b"\x1b[22;2t", b"\x1b[23;2t"),
    ],
)
def test_terminal_is_restored(words: tuple[str, ...], key: bytes, hidden: bytes, shown: bytes) -> None:
    """A run to its end shows a status line, then the report."""
    pid, terminal = start_on_terminal(words, TERM="xterm")
    observed = b""
    with contextlib.suppress(OSError):  # The end of a terminal.
        while text := os.read(terminal, 4096):
            observed += text
            if key and b" MHz; " in observed:
                os.write(terminal, key)
                key = b""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert observed.count(hidden) == observed.count(shown) == 1
    if "3" in words:
        assert status == 0
        assert b" MHz; " in observed
        assert b"ekc govern: report" in observed
    else:
        assert status in (2, 127, 130)


def test_job_inherits_stdin_and_open_files(one: ScriptedBoards) -> None:
    job = "import os, sys; print(sys.stdin.read(), os.read({}, 5).decode())"
    readable, writable = os.pipe()
    os.write(writable, b"a pipe")
    words = ("-m", "ekc", "govern", "--quiet", *python_command(job.format(readable)))
    process = one.start_python(*words, stdin=subprocess.PIPE, pass_fds=(readable,))
    out, _ = process.communicate("typed", timeout=30)
    assert out == "typed a pip\n"


def test_running_process_is_governed_and_nohup_is_respected(one: ScriptedBoards) -> None:
    job = subprocess.Popen([sys.executable, "-c", SLEEP.format(120)])
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    process = start_govern(one, "--pid", str(job.pid))
    signal.signal(signal.SIGHUP, before)
    wait_until_governed(one, process)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    status, _, err = end_job(process)
    assert status == 0
    assert "ekc govern: report" in err
    assert job.poll() is None
    job.kill()
    job.wait()
    assert one.is_restored()


def test_running_process_that_cannot_be_governed_is_a_failure(one: ScriptedBoards) -> None:
    one.update_script(lost=True)
    assert run_govern(one, "--pid", str(os.getpid()), "--actuator", "nvml")[0] == 2


def test_each_gpu_has_its_own_loop(boards: ScriptedBoards) -> None:
    process = start_govern(
        boards, "--each", "--gpu", "0", "--gpu", boards.get_uuid(1), *python_command(PATIENT_JOB)
    )
    events = boards.folder / "events"
    assert boards.wait_for(lambda _: events.exists() and events.read_text().count("Started") == 2, 60) < 60
    status, _, err = end_job(process)
    assert status == 7
    assert all(f"GPU {i}: governing through NVML, GPU {i} (Scripted GPU)" in err for i in range(2))
    assert "GPUs" not in err
    assert err.count("  governed") == 2


def test_unknown_gpu_number_is_refused(boards: ScriptedBoards) -> None:
    status, out, err = run_govern(boards, "--gpu", "2", *python_command(JOB))
    assert (status, out) == (2, "")
    assert "--gpu: no GPU '2'; GPUs are 0, 1, or UUIDs" in err


def test_restore_without_leases_says_so(one: ScriptedBoards) -> None:
    process = one.start_python("-m", "ekc", "govern", "--restore")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.startswith("nothing to restore")


def test_gpus_of_a_job_are_found_and_set_alike(boards: ScriptedBoards) -> None:
    program = str(ROOT / "tests" / "governor" / "settled_soon.py")
    words = ("govern", "--json", "events", *python_command(PATIENT_JOB))
    process = wait_until_ready(boards.start_python(program, *words))
    child = max(list_process_family(process.pid) - {process.pid})
    # Both at once: with the short wait of this test the governor might otherwise find only one.
    gpus = json.loads(boards.file.read_text())["gpus"]
    boards.update_script(gpus=[gpu | {"pids": [child]} for gpu in gpus])
    wait_until_governed(boards, process)
    status, _, err = end_job(process)
    assert "GPUs 0, 1: governing through 2 GPUs alike" in err
    assert status == 7
