"""GPUs of a job: from the environment of the job, not that of the governor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ekc.errors import ActuatorError, InvalidInput
from ekc.governor.live import gpus
from ekc.governor.live.governed_job import AttachedJob
from tests.scripted.nvml.boards import ScriptedBoards


@pytest.mark.parametrize("named", [0, 1])
def test_gpus_come_from_the_environment_of_the_process(
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
        process.stdin.close()


def test_inaccessible_gpu_does_not_affect_others(here: ScriptedBoards) -> None:
    """NVML counts the GPU in the numbers of nvidia-smi, but permits no query of it."""
    here.update_board(0, refused=True)
    assert gpus.resolve_gpus(["1", here.get_uuid(1)]) == [here.get_uuid(1)]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        job = AttachedJob(process.pid)
        assert gpus.find_job_gpus(job, process.pid) == [here.get_uuid(1)]
        process.kill()
        assert job.wait() == 0
    for word in ("0", "2", here.get_uuid(0)):
        with pytest.raises(InvalidInput, match=f"--gpu: no GPU {word!r}; GPUs are 1, or UUIDs"):
            gpus.resolve_gpus([word])
    here.update_board(1, refused=True)
    with pytest.raises(ActuatorError, match="none of the 2 GPUs here may be used by this process"):
        gpus.resolve_gpus(["0"])


def test_ended_process_has_no_environment(here: ScriptedBoards) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        job = AttachedJob(process.pid)
        process.kill()
        process.wait()
        assert job.read_variable("CUDA_VISIBLE_DEVICES") == ""
        assert job.wait() == 0


def test_starting_process_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a process starts, /proc shows an empty environment: seldom on an idle machine, in half of all
    starts on a busy one."""
    real, empty = Path.read_bytes, [b"", b""]
    monkeypatch.setattr(Path, "read_bytes", lambda path: empty.pop() if empty else real(path))
    theirs = os.environ | {"NAMED": "here"}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=theirs, stdin=subprocess.PIPE) as process:
        assert AttachedJob(process.pid).read_variable("NAMED") == "here"
        process.kill()
