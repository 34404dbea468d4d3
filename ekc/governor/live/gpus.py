"""Which GPUs a job runs on, named by UUID."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ekc.devices.limits.nvml_board import NvmlBoard
from ekc.devices.nvml.library import explained, uuids
from ekc.errors import ActuatorError, InvalidInput
from ekc.governor.live.job import Job, family

LOOK_S = 0.5
SETTLED_S = 10.0
"""The processes of a group do not reach their GPUs at one time: no new one for so long, and all are there."""
PATIENCE_S = 120.0
"""A job that has not touched a GPU by then is taken for one that does not."""


def named(words: Sequence[str]) -> list[str]:
    """By number, as nvidia-smi counts, or by UUID. Raises `InvalidInput` where there is no such GPU."""
    known = uuids()
    return list(dict.fromkeys(_named(word, known) for word in words))


def _named(word: str, known: Mapping[int, str]) -> str:
    found = known.get(int(word), "") if word.isdecimal() else word
    if found not in known.values():
        choices = ", ".join(map(str, known)) or "no GPU"
        raise InvalidInput(f"--gpu {word}: there is {choices}, or a UUID of nvidia-smi -L")
    return found


def of(job: Job, ancestor: int) -> list[str]:
    """The only GPU; else those that the job's CUDA_VISIBLE_DEVICES names by UUID; else those where NVML sees
    a process of the family of `ancestor`.

    Numbers in CUDA_VISIBLE_DEVICES are not used, since CUDA may count otherwise than NVML. None where the job
    ends before it touches one. Raises `ActuatorError` where `PATIENCE_S` pass instead.
    """
    known = tuple(uuids().values())
    if len(known) == 1:
        return list(known)
    visible = [word for word in job.variable("CUDA_VISIBLE_DEVICES").split(",") if word in known]
    return visible or _seen(job, ancestor, known)


def _seen(job: Job, ancestor: int, known: tuple[str, ...]) -> list[str]:
    boards = [NvmlBoard(uuid) for uuid in known]
    found: list[str] = []
    changed = began = time.monotonic()
    while job.running() and time.monotonic() < began + PATIENCE_S:
        mine = family(ancestor)
        now = [board.uuid for board in boards if mine & _processes(board)]
        if now != found:
            found, changed = now, time.monotonic()
        if found and time.monotonic() > changed + SETTLED_S:
            return found
        time.sleep(LOOK_S)
    if not job.running():
        return []
    raise ActuatorError(
        f"the job was not seen on any of {len(known)} GPUs for {PATIENCE_S:.0f} s; name its GPU with --gpu"
    )


def _processes(board: NvmlBoard) -> set[int]:
    running = explained(
        f"processes of {board.name}", board.library.nvmlDeviceGetComputeRunningProcesses, board.handle
    )
    return {int(process.pid) for process in running}
