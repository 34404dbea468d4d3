"""GPUs of a job: from the environment of the job, not that of the governor."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ekc.errors import ActuatorError, InvalidInput
from ekc.governor.live import gpus
from ekc.governor.live.governed_job import AttachedJob
from tests.governor.helpers import OTHER_USER, run_as_other_user
from tests.scripted.nvml.boards import ScriptedBoards

SLEEPER = [sys.executable, "-c", "input()"]


def find_gpus(job: AttachedJob) -> tuple[str, ...]:
    """UUIDs that are taken at once."""
    choice = gpus.find_job_gpus(job, job.pid, lambda line: None)
    assert choice is not None
    return choice.uuids


@pytest.mark.parametrize("named", [0, 1])
def test_gpus_come_from_the_environment_of_the_process(
    here: ScriptedBoards, named: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", here.get_uuid(1 - named))
    theirs = os.environ | {"CUDA_VISIBLE_DEVICES": here.get_uuid(named)}
    with subprocess.Popen(SLEEPER, env=theirs, stdin=subprocess.PIPE) as process:
        job = AttachedJob(process.pid)
        assert find_gpus(job) == (here.get_uuid(named),)
        assert job.read_variable("NO_SUCH_VARIABLE") is None
        job.stop_waiting()
        assert job.wait() == 0
        process.stdin.close()


def test_inaccessible_gpu_does_not_affect_others(here: ScriptedBoards) -> None:
    """NVML counts the GPU in the numbers of nvidia-smi, but permits no query of it."""
    here.update_board(0, refused=True)
    assert gpus.resolve_gpus(["1", here.get_uuid(1)]) == [here.get_uuid(1)]
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) as process:
        job = AttachedJob(process.pid)
        assert find_gpus(job) == (here.get_uuid(1),)
        process.kill()
        assert job.wait() == 0
    for word in ("0", "2", here.get_uuid(0)):
        with pytest.raises(InvalidInput, match=f"--gpu: no GPU {word!r}; GPUs are 1, or UUIDs"):
            gpus.resolve_gpus([word])
    here.update_board(1, refused=True)
    with pytest.raises(ActuatorError, match="none of the 2 GPUs here may be used by this process"):
        gpus.resolve_gpus(["0"])


def test_ended_process_has_no_environment(here: ScriptedBoards) -> None:
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) as process:
        job = AttachedJob(process.pid)
        process.kill()
        process.wait()
        assert job.read_variable("CUDA_VISIBLE_DEVICES") is None
        assert job.wait() == 0


def test_starting_process_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a process starts, /proc shows an empty environment: seldom on an idle machine, in half of all
    starts on a busy one."""
    real, empty = Path.read_bytes, [b"", b""]
    monkeypatch.setattr(Path, "read_bytes", lambda path: empty.pop() if empty else real(path))
    theirs = os.environ | {"NAMED": "here"}
    with subprocess.Popen(SLEEPER, env=theirs, stdin=subprocess.PIPE) as process:
        assert AttachedJob(process.pid).read_variable("NAMED") == "here"
        process.kill()


@contextmanager
def run_job(**variables: str) -> Iterator[AttachedJob]:
    """A running process with variables in its environment."""
    with subprocess.Popen(SLEEPER, env=os.environ | variables, stdin=subprocess.PIPE) as process:
        job = AttachedJob(process.pid)
        yield job
        job.restore_signals()
        process.kill()


def test_uncertain_gpus_are_not_taken_and_the_remedy_is_said(here: ScriptedBoards) -> None:
    here.update_board(1, name="Other GPU")
    lines: list[str] = []
    with run_job(CUDA_VISIBLE_DEVICES="1") as job:
        threading.Timer(0.5, job.stop_waiting).start()
        assert gpus.find_job_gpus(job, job.pid, lines.append) is None
    (line,) = lines
    assert line.startswith("CUDA_VISIBLE_DEVICES=1 is ignored: the GPUs here are of 2 models")
    assert line.endswith("looking for the job's processes on 2 GPUs, or give --gpu 0 or --gpu 1")


def test_gpu_with_the_jobs_process_needs_no_name(
    here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a client of MPS, of which NVML has another list."""
    monkeypatch.setattr(gpus, "SETTLE_S", 0.1)
    with run_job() as job:
        here.update_board(1, mps_pids=[job.pid])
        lines: list[str] = []
        choice = gpus.find_job_gpus(job, job.pid, lines.append)
    assert choice == gpus.GpuChoice((here.get_uuid(1),), "the job's processes are there")
    assert lines[0].startswith("the environment names none of 2 GPUs; ")
    assert lines[1] == "GPU 1: the job's processes are there"


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "SLURM_JOB_GPUS"])
def test_inferred_gpu_of_another_user_is_not_taken(
    here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setattr(gpus, "MAX_WAIT_S", 0.1)
    lines: list[str] = []
    with run_as_other_user() as stranger, run_job(**{variable: "1"}) as job:
        here.update_board(1, pids=[stranger])
        with pytest.raises(ActuatorError, match="not seen on any of 2 GPUs"):
            gpus.find_job_gpus(job, job.pid, lines.append)
        assert lines[0].startswith(f"GPU 1 is not taken ({variable}=1")
        assert f"process {stranger} (of user {OTHER_USER})" in lines[0]
        here.update_board(1, pids=[stranger, job.pid])
        assert find_gpus(job) == (here.get_uuid(1),)
    with run_as_other_user() as stranger, run_job(CUDA_VISIBLE_DEVICES=here.get_uuid(1)) as job:
        here.update_board(1, pids=[stranger])
        assert find_gpus(job) == (here.get_uuid(1),)


def test_only_gpu_of_another_user_is_not_taken(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "MAX_WAIT_S", 0.1)
    here.update_board(1, refused=True)
    with run_job() as job:
        assert find_gpus(job) == (here.get_uuid(),)
        with run_as_other_user() as stranger:
            here.update_board(0, pids=[stranger])
            with pytest.raises(ActuatorError, match="name its GPU with --gpu"):
                find_gpus(job)


def test_ranks_have_the_gpus_of_their_launcher(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "SETTLE_S", 0.1)
    with run_job(CUDA_VISIBLE_DEVICES="0") as rank, run_job(CUDA_VISIBLE_DEVICES="0,1") as launcher:
        choice = gpus.find_job_gpus(rank, launcher.pid, lambda line: None)
    assert choice is not None
    assert len(choice.uuids) == 2


def test_driver_that_lists_no_processes_is_no_failure(here: ScriptedBoards) -> None:
    not_supported = 3
    functions = "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses"
    here.update_script(fail=dict.fromkeys(functions, not_supported))
    with run_job(CUDA_VISIBLE_DEVICES="1") as job:
        assert find_gpus(job) == (here.get_uuid(1),)
