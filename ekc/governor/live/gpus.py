"""Finds the GPUs of a job, by UUID."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ekc.devices.clocks.nvml_limits import NvmlLimitReader
from ekc.devices.nvml.library import call_nvml, list_uuids
from ekc.errors import ActuatorError, InvalidInput
from ekc.governor.live.governed_job import GovernedJob, list_process_family

POLL_S = 0.5
SETTLE_S = 10.0
"""Seconds without a new GPU after which all are found: a group's processes reach theirs one by one."""
MAX_WAIT_S = 120.0
"""Seconds after which a job that has not used a GPU counts as one that uses none."""


def resolve_gpus(words: Sequence[str]) -> list[str]:
    """UUIDs of GPUs given by number, as nvidia-smi counts, or by UUID. Raises `InvalidInput` for others."""
    uuid_by_index = list_uuids()
    return list(dict.fromkeys(_resolve_gpu(word, uuid_by_index) for word in words))


def _resolve_gpu(word: str, uuid_by_index: Mapping[int, str]) -> str:
    found = uuid_by_index.get(int(word), "") if word.isdecimal() else word
    if found not in uuid_by_index.values():
        choices = ", ".join(map(str, uuid_by_index)) or "none"
        raise InvalidInput(f"--gpu: no GPU {word!r}; GPUs are {choices}, or UUIDs of nvidia-smi -L")
    return found


def find_job_gpus(job: GovernedJob, ancestor_pid: int) -> list[str]:
    """UUIDs of a job's GPUs.

    These are the only GPU; else those that the job's CUDA_VISIBLE_DEVICES names by UUID; else those on which
    NVML shows a process of the family of `ancestor_pid`. Numbers in CUDA_VISIBLE_DEVICES are not used, since
    CUDA and NVML may count differently. Empty where the job ends before it uses a GPU. Raises
    `ActuatorError` after `MAX_WAIT_S`, and at once where there is no GPU.
    """
    uuids = tuple(list_uuids().values())
    if not uuids:
        raise ActuatorError("the NVIDIA driver sees no GPU")
    if len(uuids) == 1:
        return list(uuids)
    visible = [word for word in job.read_variable("CUDA_VISIBLE_DEVICES").split(",") if word in uuids]
    return visible or _wait_for_gpus(job, ancestor_pid, uuids)


def _wait_for_gpus(job: GovernedJob, ancestor_pid: int, uuids_present: tuple[str, ...]) -> list[str]:
    boards = [NvmlLimitReader(uuid) for uuid in uuids_present]
    found: list[str] = []
    changed_s = start_s = time.monotonic()
    while job.is_running() and time.monotonic() < start_s + MAX_WAIT_S:
        family = list_process_family(ancestor_pid)
        in_use = [board.uuid for board in boards if family & _list_processes(board)]
        if in_use != found:
            found, changed_s = in_use, time.monotonic()
        if found and time.monotonic() > changed_s + SETTLE_S:
            return found
        time.sleep(POLL_S)
    if not job.is_running():
        return []
    raise ActuatorError(
        f"the job was not seen on any of {len(uuids_present)} GPUs for {MAX_WAIT_S:.0f} s; "
        "name its GPU with --gpu"
    )


def _list_processes(board: NvmlLimitReader) -> set[int]:
    running = call_nvml(
        f"processes of {board.name}", board.library.nvmlDeviceGetComputeRunningProcesses, board.handle
    )
    return {int(process.pid) for process in running}
