"""Which GPUs `ekc govern` takes, leaves and says, with real processes on the scripted NVML."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ekc.processes.process_facts import list_process_family
from tests.governor.helpers import (
    end_job,
    python_command,
    run_as_other_user,
    start_govern,
    start_governing,
    wait_until,
    wait_until_governed,
    wait_until_ready,
)
from tests.scripted.nvml.boards import ROOT, ScriptedBoards

EXHAUSTIVE = pytest.mark.exhaustive
READY_JOB = "import time; print('ready', flush=True); time.sleep(120)"
SETTLED_SOON = str(ROOT / "tests" / "governor" / "settled_soon.py")


def wait_for_line(process: subprocess.Popen[str], words: str) -> str:
    """The next line on stderr that has `words`."""
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"no line has {words!r}")


def start_settled_soon(boards: ScriptedBoards, *words: str) -> subprocess.Popen[str]:
    """A governor that waits a second for processes that have not reached their GPUs yet, and its job."""
    return wait_until_ready(boards.start_python(SETTLED_SOON, "govern", *words, *python_command(READY_JOB)))


def find_job_pid(process: subprocess.Popen[str]) -> int:
    return next(
        pid
        for pid in list_process_family(process.pid)
        if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2] == [b"-c"]
    )


@pytest.mark.parametrize(
    ("variables", "number", "reason"),
    [
        pytest.param({"CUDA_VISIBLE_DEVICES": "{}"}, 1, "CUDA_VISIBLE_DEVICES=GPU-", marks=EXHAUSTIVE),
        ({"CUDA_VISIBLE_DEVICES": "1"}, 1, "CUDA_VISIBLE_DEVICES=1, counted by PCI address"),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": "0"}, 0, "NVIDIA_VISIBLE_DEVICES=0", marks=EXHAUSTIVE),
    ],
)
def test_gpus_of_a_container_are_governed_at_once(
    boards: ScriptedBoards, variables: dict[str, str], number: int, reason: str
) -> None:
    """NVML shows no process. A UUID may be abbreviated."""
    boards.extra = {name: text.format(boards.get_uuid(1)[:12]) for name, text in variables.items()}
    process = start_governing(boards, *python_command(READY_JOB))
    _, _, err = end_job(process)
    assert err.startswith(f"ekc govern: GPU {number}: {reason}")
    assert f"GPU {number}: governing through NVML" in err


@pytest.mark.exhaustive
def test_two_models_are_said_and_then_found_by_the_process(boards: ScriptedBoards) -> None:
    boards.update_board(0, name="Fast GPU")
    boards.extra = {"CUDA_VISIBLE_DEVICES": "1"}
    process = start_settled_soon(boards)
    line = process.stderr.readline()
    assert "of 2 models (Fast GPU, Scripted GPU), which CUDA counts by their speed" in line
    assert "give --gpu 0 or --gpu 1" in line
    boards.update_board(0, pids=[find_job_pid(process)])
    wait_for_line(process, "GPU 0: the job's processes are there")
    wait_for_line(process, "GPU 0: governing through NVML")
    assert end_job(process)[0] == 143


def test_numbers_of_the_host_are_ignored_in_a_renumbered_container(boards: ScriptedBoards) -> None:
    boards.extra = {"NVIDIA_VISIBLE_DEVICES": "2,3", "SLURM_JOB_GPUS": "2,3"}
    process = wait_until_ready(start_govern(boards, *python_command(READY_JOB)))
    line = process.stderr.readline()
    assert "SLURM_JOB_GPUS=2,3 is ignored: the host numbered at least 3 GPUs, and NVML sees 2 here" in line
    assert "NVIDIA_VISIBLE_DEVICES=2,3 is ignored" in line
    assert "give --gpu 0 or --gpu 1" in line
    assert end_job(process)[0] == 143
    assert not boards.read_calls()


def test_part_of_a_gpu_is_not_governed(boards: ScriptedBoards) -> None:
    boards.update_board(0, mig=[1, 1])
    boards.extra = {"CUDA_VISIBLE_DEVICES": "MIG-5c89852c-d268-5f3f-8c9b-d4a1a8a6c9b3"}
    process = wait_until_ready(start_govern(boards, *python_command(READY_JOB)))
    line = process.stderr.readline()
    assert "is a part of a GPU that is split by MIG" in line
    assert line.endswith("govern a whole GPU; the job runs ungoverned\n")
    assert end_job(process)[0] == 143
    assert not boards.read_calls()


def test_inferred_gpu_is_left_when_another_user_comes(boards: ScriptedBoards) -> None:
    boards.extra = {"CUDA_VISIBLE_DEVICES": "1"}
    process = start_governing(boards, *python_command(READY_JOB))
    assert boards.has_lease()
    with run_as_other_user() as stranger:
        boards.update_board(1, pids=[stranger])
        line = wait_for_line(process, "GPU 1 is not governed any more")
        assert f"process {stranger} (of user " in line
        assert "give --gpu 1 to govern it all the same" in line
        assert boards.is_restored()
        assert end_job(process)[0] == 143


@pytest.mark.exhaustive
def test_job_that_is_seen_elsewhere_is_followed(boards: ScriptedBoards) -> None:
    boards.extra = {"CUDA_VISIBLE_DEVICES": "0,1"}
    process = start_settled_soon(boards, "--json", "events")
    wait_until_governed(boards, process)
    boards.update_board(1, pids=[find_job_pid(process)])
    wait_for_line(process, "the job's processes are on GPU 1, not on GPUs 0, 1 (CUDA_VISIBLE_DEVICES=0,1")
    wait_for_line(process, "GPU 1: governing through NVML")
    status = end_job(process)[0]
    assert status == 143
    assert boards.is_restored()
    events = map(json.loads, (boards.folder / "events").read_text().splitlines())
    assert [e["gpu"] for e in events if e["event"] == "Started"] == ["GPUs 0, 1", "GPU 1"]


def test_processes_beside_the_job_are_said(one: ScriptedBoards) -> None:
    process = start_governing(one, "--gpu", "0", *python_command(READY_JOB))
    with subprocess.Popen(["sleep", "300"]) as neighbour:
        one.update_board(0, pids=[find_job_pid(process), neighbour.pid])
        line = wait_for_line(process, "GPU 0 is not the job's alone")
        assert f"process {neighbour.pid} (of user " in line
        assert str(find_job_pid(process)) not in line
        neighbour.kill()
    one.update_board(0, pids=[find_job_pid(process)])
    wait_for_line(process, "GPU 0 is the job's alone again")
    one.update_board(0, pids=[], mps_pids=[find_job_pid(process)])
    wait_for_line(process, "GPU 0 is shared by MPS; its clocks")
    assert end_job(process)[0] == 143


@pytest.mark.exhaustive
def test_server_of_mps_is_no_other_job(one: ScriptedBoards) -> None:
    program = one.folder / "nvidia-cuda-mps-server"
    program.symlink_to("/bin/sleep")
    process = start_governing(one, "--gpu", "0", *python_command(READY_JOB))
    with subprocess.Popen([program, "300"]) as server:
        one.update_board(0, pids=[server.pid])
        wait_for_line(process, "GPU 0 is shared by MPS; its clocks")
        server.kill()
    assert end_job(process)[0] == 143


@pytest.mark.parametrize("end", ["terminate", pytest.param("kill", marks=EXHAUSTIVE)])
def test_refused_governor_takes_over(one: ScriptedBoards, end: str) -> None:
    first = start_governing(one, *python_command(READY_JOB))
    first_job = find_job_pid(first)
    words = ("--json", "others", *python_command(READY_JOB))
    second = wait_until_ready(start_govern(one, *words))
    line = second.stderr.readline()
    assert f"governed by process {first.pid} already" in line
    assert line.endswith("the job runs ungoverned until that process ends\n")
    getattr(first, end)()
    if end == "kill":
        os.kill(first_job, signal.SIGKILL)
    others = one.folder / "others"
    wait_until(lambda: others.exists() and "Started" in others.read_text())
    status, _, err = end_job(second)
    assert status == 143
    assert err.count("governed by process") == 0
    assert "ekc govern: report" in err
    first.communicate(timeout=60)
    assert one.is_restored()


@pytest.mark.exhaustive
def test_refused_governor_of_a_running_process_waits_too(one: ScriptedBoards) -> None:
    first = start_governing(one, *python_command(READY_JOB))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as job:
        second = start_govern(one, "--json", "others", "--pid", str(job.pid))
        wait_for_line(second, f"governed by process {first.pid} already")
        job.stdin.close()
        assert second.wait(60) == 2
        assert "governed by process" in second.stderr.read()
    end_job(first)
