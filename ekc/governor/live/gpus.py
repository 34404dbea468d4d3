"""Finds the GPUs of a job, by UUID: named, inferred from its environment, or with a process of it.
`BoardWatch` then watches them: which ones others share, and whether the choice was wrong.

`ProcessLister` has the processes as NVML shows them: those of the job, of other users, and MPS. Containers
may see no process at all, or the host's numbers of processes, which say nothing there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ekc.devices.clocks.limits import NvmlLimitReader
from ekc.devices.nvml.library import (
    MPS_PROGRAM,
    call_nvml,
    list_compute_pids,
    list_mps_pids,
    list_uuids,
    load_nvml,
)
from ekc.errors import ActuatorError, InvalidInput
from ekc.governor.live.governed_job import GovernedJob
from ekc.governor.live.visible_boards import VARIABLES, InferredBoards, VisibleBoard, infer_boards
from ekc.processes.process_facts import (
    has_own_process_numbers,
    list_process_family,
    read_command_name,
    read_environment,
    read_user_id,
)

POLL_S = 0.5
SETTLE_S = 10.0
"""Seconds without a new GPU after which all are found: a group's processes reach theirs one by one."""
ENDING_S = 0.2
"""Seconds after which a process that has just ended is in no list any more."""
MAX_WAIT_S = 120.0
"""Seconds after which a job that has not used a GPU counts as one that uses none."""
_SHOWN_COUNT = 3
"""Processes of one GPU that a line names."""


@dataclass(frozen=True)
class BoardProcesses:
    """Processes with a CUDA context on one GPU."""

    of_job: frozenset[int] = frozenset()
    of_same_user: frozenset[int] = frozenset()
    """Processes of the job's user that are not of the job."""
    of_others: frozenset[int] = frozenset()
    """Processes of other users, and those whose user cannot be seen."""
    unseen: frozenset[int] = frozenset()
    """Processes of `of_others` whose user cannot be seen."""
    of_mps: frozenset[int] = frozenset()
    """Servers of MPS."""
    has_mps: bool = False
    """Whether MPS shares the GPU between processes."""

    @property
    def foreign(self) -> frozenset[int]:
        """Processes that are not of the job, without the servers of MPS."""
        return (self.of_same_user | self.of_others) - self.of_mps


def describe_processes(pids: Iterable[int]) -> str:
    """Processes for people, the first few of them."""
    every = sorted(pids)
    more = f" and {len(every) - _SHOWN_COUNT} more" if len(every) > _SHOWN_COUNT else ""
    return ", ".join(map(_describe_process, every[:_SHOWN_COUNT])) + more


def _describe_process(pid: int) -> str:
    user = read_user_id(pid)
    return f"process {pid} ({'its user cannot be seen' if user is None else f'of user {user}'})"


class ProcessLister:
    """Lists the processes on GPUs by their relation to a job, whose root is the process `ancestor_pid`."""

    def __init__(self, ancestor_pid: int) -> None:
        self._ancestor_pid = ancestor_pid
        self._user = read_user_id(ancestor_pid)
        self._family: set[int] = {ancestor_pid}
        """Processes that are known to be of the job: a descendant stays one after its parent has ended."""
        self._strangers: set[int] = set()
        """Processes on GPUs that were looked up and are not of the job."""

    def list_processes(self, boards: Sequence[NvmlLimitReader]) -> dict[str, BoardProcesses]:
        """Processes on each GPU, by its UUID. Raises `ActuatorError`, as for a lost GPU."""
        clients = {x.uuid: list_mps_pids(x.name, x.handle) for x in boards}
        found = {x.uuid: clients[x.uuid] | list_compute_pids(x.name, x.handle) for x in boards}
        everywhere = set[int]().union(*found.values())
        if everywhere - self._family - self._strangers:
            self._family |= list_process_family(self._ancestor_pid)
        self._family &= everywhere | {self._ancestor_pid}  # The kernel uses numbers again.
        self._strangers = everywhere - self._family
        users = {pid: read_user_id(pid) for pid in self._strangers}
        return {uuid: self._sort_processes(pids, users, bool(clients[uuid])) for uuid, pids in found.items()}

    def _sort_processes(
        self, pids: set[int], users: Mapping[int, int | None], has_clients: bool
    ) -> BoardProcesses:
        foreign = pids - self._family
        servers = frozenset(pid for pid in pids if read_command_name(pid).startswith(MPS_PROGRAM))
        others = frozenset(pid for pid in foreign if users[pid] is None or users[pid] != self._user)
        return BoardProcesses(
            of_job=frozenset(pids & self._family),
            of_same_user=frozenset(foreign) - others,
            of_others=others,
            unseen=frozenset(pid for pid in others if users[pid] is None),
            of_mps=servers,
            has_mps=has_clients or bool(servers),
        )


@dataclass(frozen=True)
class GpuChoice:
    """GPUs to govern."""

    uuids: tuple[str, ...]
    reason: str
    """Why these, for people."""
    is_inferred: bool = False
    """Whether nothing but the environment, or the absence of other GPUs, speaks for them."""


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


def find_job_gpus(job: GovernedJob, ancestor_pid: int, on_line: Callable[[str], None]) -> GpuChoice | None:
    """The GPUs of a job.

    These are the GPUs that the environment of `ancestor_pid` names, or the only GPU, unless another user's
    process is on one of them; else those on which NVML shows a process of its family. `on_line` gets one line
    at once, which says what was taken and why, or what to give to `--gpu`. None where the job ends before it
    uses a GPU. Raises `ActuatorError` after `MAX_WAIT_S`, and at once where there is no GPU or a part of one.
    """
    uuids = tuple(list_uuids().values())
    if not uuids:
        raise ActuatorError("the NVIDIA driver sees no GPU")
    readers = [NvmlLimitReader(uuid) for uuid in uuids]
    boards = [_describe_board(reader) for reader in readers]
    # Those included that this process may not use.
    board_count = int(call_nvml("the number of GPUs", load_nvml().nvmlDeviceGetCount))
    inferred = infer_boards(_read_variables(job, ancestor_pid), boards, board_count)
    if inferred.is_part:
        raise ActuatorError(
            f"{inferred.reason} is a part of a GPU that is split by MIG: its clocks and its energy are those "
            "of all parts; govern a whole GPU"
        )
    lister = ProcessLister(ancestor_pid)
    refusals = [*inferred.ignored, *_list_occupied(inferred, readers, lister)]
    choices = " or ".join(f"--gpu {board.index}" for board in boards)
    if inferred.boards and len(refusals) == len(inferred.ignored):
        names = format_gpu_numbers([board.index for board in inferred.boards])
        if len(boards) > 1 or refusals:
            on_line("; ".join((f"{names}: {inferred.reason}", *refusals)))
        return GpuChoice(tuple(x.uuid for x in inferred.boards), inferred.reason, not inferred.is_named)
    on_line(
        "; ".join((*refusals, f"looking for the job's processes on {len(boards)} GPUs, or give {choices}"))
        if refusals
        else f"the environment names none of {len(boards)} GPUs; looking for the job's processes on them, or "
        f"give {choices}"
    )
    return _wait_for_processes(job, lister, readers, on_line)


def format_gpu_numbers(numbers: Sequence[int]) -> str:
    """Name of GPUs for people: "GPU 0", "GPUs 0, 1"."""
    return f"GPU{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def format_gpu_names(uuids: Sequence[str]) -> str:
    """Name of GPUs, given by UUID, for people."""
    return format_gpu_numbers([NvmlLimitReader(uuid).index for uuid in uuids])


def _describe_board(reader: NvmlLimitReader) -> VisibleBoard:
    mig_mode, minor = _query(reader, "nvmlDeviceGetMigMode"), _query(reader, "nvmlDeviceGetMinorNumber")
    return VisibleBoard(
        reader.index,
        reader.uuid,
        reader.product_name,
        _read_address(reader),
        None if minor is None else int(minor),
        mig_mode is not None and bool(mig_mode[0]),
    )


def _read_address(reader: NvmlLimitReader) -> str:
    try:
        return reader.read_pci_address()
    except ActuatorError:  # A GPU that is no PCI device, as in a Jetson.
        return ""


def _query(reader: NvmlLimitReader, function: str) -> Any:
    """Result of a function that not every card, driver and installed nvidia-ml-py has; None without it."""
    try:
        return call_nvml(reader.name, getattr(reader.library, function), reader.handle)
    except (ActuatorError, AttributeError):
        return None


def _read_variables(job: GovernedJob, ancestor_pid: int) -> dict[str, str | None]:
    """The variables that name GPUs; of the launcher where the job is one of its ranks."""
    if ancestor_pid == job.pid:
        return {name: job.read_variable(name) for name in VARIABLES}
    environment = read_environment(ancestor_pid)
    return {name: environment.get(name) for name in VARIABLES}


def _list_occupied(
    inferred: InferredBoards, readers: Sequence[NvmlLimitReader], lister: ProcessLister
) -> list[str]:
    """A line for each inferred board that must not be taken, since another user's process is on it."""
    if inferred.is_named:
        return []
    wanted = {board.uuid: board.index for board in inferred.boards}
    watched = [reader for reader in readers if reader.uuid in wanted]
    found = lister.list_processes(watched)
    if any(on_board.unseen for on_board in found.values()):
        time.sleep(ENDING_S)
        found = lister.list_processes(watched)
    return [
        f"GPU {index} is not taken ({inferred.reason}), since it shows "
        f"{describe_processes(found[uuid].of_others)}"
        for uuid, index in wanted.items()
        if found[uuid].of_others and not found[uuid].of_job
    ]


def find_seen_gpus(job: GovernedJob, ancestor_pid: int, on_line: Callable[[str], None]) -> GpuChoice | None:
    """As `find_job_gpus`, by the job's processes alone."""
    readers = [NvmlLimitReader(uuid) for uuid in list_uuids().values()]
    return _wait_for_processes(job, ProcessLister(ancestor_pid), readers, on_line)


def _wait_for_processes(
    job: GovernedJob,
    lister: ProcessLister,
    readers: Sequence[NvmlLimitReader],
    on_line: Callable[[str], None],
) -> GpuChoice | None:
    """The GPUs on which NVML shows processes of the job, once no more come; None where the job ends before.
    Raises `ActuatorError` after `MAX_WAIT_S`."""
    settled = SettledBoards()
    start_s = time.monotonic()
    while job.is_running() and time.monotonic() < start_s + MAX_WAIT_S:
        found = settled.select_boards(lister.list_processes(readers))
        if found:
            numbers = [reader.index for reader in readers if reader.uuid in found]
            on_line(f"{format_gpu_numbers(numbers)}: the job's processes are there")
            return GpuChoice(found, "the job's processes are there")
        time.sleep(POLL_S)
    if not job.is_running():
        return None
    raise ActuatorError(
        f"the job was not seen on any of {len(readers)} GPUs for {MAX_WAIT_S:.0f} s; name its GPU with --gpu"
    )


class SettledBoards:
    """The GPUs on which a job's processes are, once none was added for `SETTLE_S`."""

    def __init__(self) -> None:
        self._found: tuple[str, ...] = ()
        self._changed_s = time.monotonic()

    def select_boards(self, processes: Mapping[str, BoardProcesses]) -> tuple[str, ...]:
        """UUIDs as far as they are settled, else none, from the processes on all GPUs by UUID."""
        found = tuple(uuid for uuid, on_board in processes.items() if on_board.of_job)
        if found != self._found:
            self._found, self._changed_s = found, time.monotonic()
        return found if found and time.monotonic() > self._changed_s + SETTLE_S else ()


@dataclass(frozen=True)
class RefutedChoice:
    """Why GPUs must not be governed any more."""

    reason: str
    choice: GpuChoice | None = None
    """GPUs on which the job was seen instead; None where it was seen on none."""


class BoardWatch:
    """Watches the GPUs of a choice. `on_line` gets a line when other processes come to one, and when all of
    them are gone."""

    def __init__(self, choice: GpuChoice, ancestor_pid: int, on_line: Callable[[str], None]) -> None:
        self._choice, self._on_line = choice, on_line
        self._lister = ProcessLister(ancestor_pid)
        self._readers = [NvmlLimitReader(uuid) for uuid in choice.uuids]
        self._others: list[NvmlLimitReader] = []
        """The GPUs beside those of an inferred choice: the job may be seen there."""
        if choice.is_inferred:
            others = [uuid for uuid in list_uuids().values() if uuid not in choice.uuids]
            self._others = [NvmlLimitReader(uuid) for uuid in others]
        self._settled = SettledBoards()
        self._shared: dict[str, str] = {}
        """How each GPU is shared, by UUID, as said last."""
        self._unseen: frozenset[int] = frozenset()
        """Processes of unseen users in the last look."""

    def look(self) -> RefutedChoice | None:
        """Look once; None while the choice is right. The control loop reports a GPU that cannot be read."""
        try:
            found = self._lister.list_processes([*self._readers, *self._others])
            for reader in self._readers:
                self._report_sharing(reader, found[reader.uuid])
            return self._refute(found) if self._choice.is_inferred else None
        except ActuatorError:
            return None

    def _report_sharing(self, reader: NvmlLimitReader, processes: BoardProcesses) -> None:
        """Say when a GPU becomes shared, and when it ceases to be."""
        sharing = "MPS" if processes.has_mps else "others" if processes.foreign else ""
        if sharing == self._shared.get(reader.uuid, ""):
            return
        self._shared[reader.uuid] = sharing
        names = format_gpu_numbers([reader.index])
        others = f": {describe_processes(processes.foreign)}" if processes.foreign else ""
        effect = "its clocks, its energy and the slowdown are those of all its processes"
        if sharing == "MPS":
            self._on_line(f"{names} is shared by MPS{others}; {effect}")
        elif sharing:
            self._on_line(f"{names} is not the job's alone{others}; {effect}")
        else:
            self._on_line(f"{names} is the job's alone again")

    def _refute(self, found: Mapping[str, BoardProcesses]) -> RefutedChoice | None:
        """Why an inferred choice does not stand; raises `ActuatorError` where a GPU cannot be read."""
        for reader in self._readers:
            others = self._select_certain(found[reader.uuid])
            if others and not found[reader.uuid].of_job:
                return RefutedChoice(
                    f"{format_gpu_numbers([reader.index])} is not governed any more: it shows "
                    f"{describe_processes(others)}, and the job was not seen there ({self._choice.reason}); "
                    f"give --gpu {reader.index} to govern it all the same"
                )
        self._unseen = frozenset[int]().union(*(on_board.unseen for on_board in found.values()))
        seen = self._settled.select_boards(found)
        if not seen:
            return None
        if set(seen) == set(self._choice.uuids):
            self._choice, self._others = replace(self._choice, is_inferred=False), []
            return None
        names = self._format_names(seen)
        return RefutedChoice(
            f"the job's processes are on {names}, not on {self._format_names(self._choice.uuids)} "
            f"({self._choice.reason})",
            GpuChoice(seen, "the job's processes are there"),
        )

    def _select_certain(self, processes: BoardProcesses) -> frozenset[int]:
        """Other users' processes. One whose user cannot be seen counts when it is seen twice, since it may
        have just ended; in a container it may be the job's own, by its number on the host."""
        unseen = processes.unseen
        is_certain = not has_own_process_numbers()
        return (processes.of_others - unseen) | (unseen & self._unseen if is_certain else frozenset())

    def _format_names(self, uuids: Sequence[str]) -> str:
        return format_gpu_numbers(sorted(NvmlLimitReader(uuid).index for uuid in uuids))
