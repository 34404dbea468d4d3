"""Which GPUs a job runs on: its own environment tells, not ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ekc.errors import ActuatorError, InvalidInput
from ekc.governor.live import gpus
from ekc.governor.live.job import AttachedJob
from tests.scripted.nvml.boards import ScriptedBoards


@pytest.mark.parametrize("named", [0, 1])
def test_a_process_is_asked_what_it_sees(
    here: ScriptedBoards, named: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", here.get_uuid(1 - named))
    theirs = os.environ | {"CUDA_VISIBLE_DEVICES": here.get_uuid(named)}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=theirs, stdin=subprocess.PIPE) as process:
        job = AttachedJob(process.pid)
        assert gpus.find_job_gpus(job, process.pid) == [here.get_uuid(named)]
        assert job.read_variable("NO_SUCH_VARIABLE") == ""
        job.stop_waiting()
        assert job.wait() == 0
        assert process.stdin is not None
        process.stdin.close()


def test_a_gpu_that_we_were_not_given_costs_no_other(here: ScriptedBoards) -> None:
    """NVML counts it, by the numbers of nvidia-smi, and lets nobody ask it."""
    here.update_board(0, refused=True)
    assert gpus.resolve_gpus(["1", here.get_uuid(1)]) == [here.get_uuid(1)]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        job = AttachedJob(process.pid)
        assert gpus.find_job_gpus(job, process.pid) == [here.get_uuid(1)]
        process.kill()
        assert job.wait() == 0
    for word in ("0", "2", here.get_uuid(0)):
        with pytest.raises(InvalidInput, match=f"--gpu {word}: there is 1, or a UUID"):
            gpus.resolve_gpus([word])
    here.update_board(1, refused=True)
    with pytest.raises(ActuatorError, match="none of the 2 GPUs here may be used by this process"):
        gpus.resolve_gpus(["0"])


def test_a_process_that_is_gone_tells_nothing(here: ScriptedBoards) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        job = AttachedJob(process.pid)
        process.kill()
        process.wait()
        assert job.read_variable("CUDA_VISIBLE_DEVICES") == ""
        assert job.wait() == 0


def test_a_process_that_has_just_begun_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the kernel's taking a program and its handing over the environment, /proc shows none: seldom
    on a quiet machine, for half of all starts on a busy one."""
    real, empty = Path.read_bytes, [b"", b""]
    monkeypatch.setattr(Path, "read_bytes", lambda path: empty.pop() if empty else real(path))
    theirs = os.environ | {"NAMED": "here"}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=theirs, stdin=subprocess.PIPE) as process:
        assert AttachedJob(process.pid).read_variable("NAMED") == "here"
        process.kill()
