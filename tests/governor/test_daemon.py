"""`ekc govern` of a user who may not set clocks, through the daemon, and its job under Slurm: real processes
and users, the prolog and epilog of the documentation, scripted NVML."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.devices.clocks.daemon.conftest import open_boards, open_daemon
from tests.devices.clocks.daemon.helpers import CAROL, RunningDaemon, measure_seconds, start_as_user
from tests.docs.blocks import blocks
from tests.scripted.nvml.boards import ROOT, ScriptedBoards

PAGE = (ROOT / "docs/how-to/govern-slurm.md").read_text()
RESTLESS_SCRIPT = str(Path(__file__).with_name("restless_govern.py"))
"""Sets limits all the time, under the real lease and session."""
SLURM = {"SLURM_JOB_ID": "4711", "SLURM_JOB_UID": str(CAROL), "SLURM_JOB_GPUS": "3,0"}
LIMIT_S = 5.0


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with open_boards(1) as boards, open_daemon(boards) as running:
        boards.update_script(root_only=True)
        boards.update_board(0, minor=3)
        boards.extra |= {"EKC_GOVERNOR_SOCKET": str(running.socket_path), "HOME": "/nonexistent"}
        yield running


def _run_hook(daemon: RunningDaemon, name: str) -> None:
    """Run a script of the page as slurmd does: as root, with Slurm's variables and no PATH."""
    (text,) = (x.text for x in blocks(PAGE) if f"/etc/slurm/{name}.d/" in x.text and "jobs" in x.text)
    script = daemon.boards.folder / name
    script.write_text(text.replace("/run/ekc/jobs", str(daemon.boards.leases / "jobs")))
    script.chmod(0o755)
    done = subprocess.run([script], env=SLURM, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.fixture
def job(daemon: RunningDaemon) -> Iterator[None]:
    _run_hook(daemon, "prolog")
    yield
    _run_hook(daemon, "epilog")
    assert not list((daemon.boards.leases / "jobs").iterdir())


def _start(daemon: RunningDaemon, *words: str) -> subprocess.Popen[str]:
    """A process of the job's user, with the variables of its job."""
    daemon.boards.extra |= SLURM | {"EKC_RUN_DIR": f"/tmp/ekc-{CAROL}"}
    try:
        return start_as_user(daemon.boards, CAROL, *words)
    finally:
        del daemon.boards.extra["EKC_RUN_DIR"]


def _signal_all(process: subprocess.Popen[str], number: int) -> None:
    """Signal every process of a job, as a batch system does."""
    os.killpg(process.pid, number)


def _is_set(boards: ScriptedBoards) -> bool:
    return not boards.are_limits_back()


def test_user_without_rights_is_governed_through_the_daemon(daemon: RunningDaemon, job: None) -> None:
    words = ("govern", "--", sys.executable, "-c", "import time; time.sleep(3); raise SystemExit(7)")
    process = _start(daemon, "-m", "ekc", *words)
    daemon.wait_for_log(f"process {process.pid} of uid {CAROL} leases NVML, GPU 0 (Scripted GPU)")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 7, err
    assert "may not set clocks" not in err
    assert daemon.boards.is_restored()


def test_suspended_job_is_restored_and_set_again_at_resume(daemon: RunningDaemon) -> None:
    """`scontrol suspend` sends SIGTSTP, then SIGSTOP, to every process; `scontrol resume` sends SIGCONT. A
    process that outlives the epilog loses its GPU."""
    _run_hook(daemon, "prolog")
    process = _start(daemon, RESTLESS_SCRIPT, sys.executable, "-c", "import time; time.sleep(60)")
    measure_seconds(daemon.boards, _is_set)
    _signal_all(process, signal.SIGTSTP)
    _signal_all(process, signal.SIGSTOP)
    assert measure_seconds(daemon.boards, ScriptedBoards.is_restored) < LIMIT_S
    _signal_all(process, signal.SIGCONT)
    measure_seconds(daemon.boards, _is_set)
    _run_hook(daemon, "epilog")
    assert measure_seconds(daemon.boards, ScriptedBoards.is_restored) < LIMIT_S
    daemon.wait_for_log("allows those of its jobs): previous settings are back")
    _signal_all(process, signal.SIGKILL)
    process.communicate()
