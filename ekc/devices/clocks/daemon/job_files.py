"""Files that a batch system writes for its jobs: which user has which GPUs of this machine now.

A file per job in the folder `jobs` beside the leases, written by the prolog and deleted by the epilog:

    uid = 1000
    gpus = [0, 3]      # numbers of /dev/nvidiaN, as in SLURM_JOB_GPUS, or UUIDs

A rule of the allow-list with `gpus = "jobs"` permits its users these GPUs, for as long as the file is there.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ekc.devices.clocks.lease_file import find_lease_folder
from ekc.errors import InvalidInput

MAX_FILE_BYTES = 4096


@dataclass(frozen=True)
class GpuIdentity:
    """The names of one GPU."""

    index: int
    """Number of nvidia-smi."""
    device_number: int
    """N of /dev/nvidiaN."""
    uuid: str


@dataclass(frozen=True)
class JobFile:
    """User and GPUs of one job."""

    uid: int
    gpus: tuple[int | str, ...]


def make_job_folder() -> Path:
    """Make the folder of job files where it is missing. Raises `InvalidInput` for an unsafe one."""
    folder = find_lease_folder() / "jobs"
    try:
        folder.mkdir(mode=0o755, exist_ok=True)
        _check_owner(folder, folder.lstat(), stat.S_ISDIR)
    except OSError as problem:
        raise InvalidInput(f"{folder}: {problem.strerror}; set EKC_RUN_DIR to another folder") from problem
    return folder


def find_jobs(uid: int, gpu: GpuIdentity) -> list[str]:
    """Names of the job files that give a GPU to a user. Raises `InvalidInput` for a file that is no job file,
    where no other one gives the GPU."""
    found, problems = [], []
    for file in sorted(make_job_folder().iterdir()):
        try:
            job = _read_job_file(file)
        except FileNotFoundError:
            continue  # The job has just ended.
        except InvalidInput as problem:
            problems.append(problem)
            continue
        if job.uid == uid and (gpu.device_number in job.gpus or gpu.uuid in job.gpus):
            found.append(file.name)
    if problems and not found:
        raise problems[0]
    return found


def _read_job_file(file: Path) -> JobFile:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as opened:
            _check_owner(file, os.fstat(descriptor), stat.S_ISREG)
            content = tomllib.loads(opened.read(MAX_FILE_BYTES).decode())
        uid, gpus = content["uid"], content["gpus"]
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError) as problem:
        raise InvalidInput(f"{file} is no job file ({problem}); write uid = 1000 and gpus = [0]") from problem
    if type(uid) is not int or not isinstance(gpus, list) or not all(type(x) in (int, str) for x in gpus):
        raise InvalidInput(f"{file} is no job file; write uid = 1000 and gpus = [0]")
    return JobFile(uid, tuple(gpus))


def _check_owner(path: Path, status: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    if not is_kind(status.st_mode) or status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        raise InvalidInput(f"{path}: others than root may write it, or it is a link; delete it")
