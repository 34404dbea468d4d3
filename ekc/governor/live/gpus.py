"""Which GPUs a job runs on, named by UUID."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ekc.devices.clocks.nvml_limits import NvmlLimitReader
from ekc.devices.nvml.library import call_nvml, list_uuids
from ekc.errors import ActuatorError, InvalidInput
from ekc.governor.live.job import GovernedJob, list_process_family

POLL_S = 0.5
SETTLE_S = 10.0
"""The processes of a group do not reach their GPUs at one time: no new one for so long, and all are there."""
MAX_WAIT_S = 120.0
"""A job that has not touched a GPU by then is taken for one that does not."""


def resolve_gpus(words: Sequence[str]) -> list[str]:
    """By number, as nvidia-smi counts, or by UUID. Raises `InvalidInput` where there is no such GPU."""
    known = list_uuids()
    return list(dict.fromkeys(_resolve_gpu(word, known) for word in words))


def _resolve_gpu(word: str, uuid_by_index: Mapping[int, str]) -> str:
    found = uuid_by_index.get(int(word), "") if word.isdecimal() else word
    if found not in uuid_by_index.values():
        choices = ", ".join(map(str, uuid_by_index)) or "no GPU"
        raise InvalidInput(f"--gpu {word}: there is {choices}, or a UUID of nvidia-smi -L")
    return found


def find_job_gpus(job: GovernedJob, ancestor_pid: int) -> list[str]:
    """The only GPU; else those that the job's CUDA_VISIBLE_DEVICES names by UUID; else those where NVML sees
    a process of the family of `ancestor`.

    Numbers in CUDA_VISIBLE_DEVICES are not used, since CUDA may count otherwise than NVML. None where the job
    ends before it touches one. Raises `ActuatorError` where `PATIENCE_S` pass instead.
    """
    known = tuple(list_uuids().values())
    if len(known) == 1:
        return list(known)
    visible = [word for word in job.read_variable("CUDA_VISIBLE_DEVICES").split(",") if word in known]
    return visible or _wait_for_gpus(job, ancestor_pid, known)


def _wait_for_gpus(job: GovernedJob, ancestor_pid: int, uuids_present: tuple[str, ...]) -> list[str]:
    boards = [NvmlLimitReader(uuid) for uuid in uuids_present]
    found: list[str] = []
    changed = began = time.monotonic()
    while job.is_running() and time.monotonic() < began + MAX_WAIT_S:
        mine = list_process_family(ancestor_pid)
        now = [board.uuid for board in boards if mine & _list_processes(board)]
        if now != found:
            found, changed = now, time.monotonic()
        if found and time.monotonic() > changed + SETTLE_S:
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
