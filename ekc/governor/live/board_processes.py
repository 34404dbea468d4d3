"""Processes on GPUs, as NVML shows them: those of the job, of other users, and MPS.

Containers may see no process at all, or the host's numbers of processes, which say nothing there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ekc.devices.clocks.limits import NvmlLimitReader
from ekc.devices.nvml.library import MPS_PROGRAM, list_compute_pids, list_mps_pids
from ekc.processes.process_facts import list_process_family, read_command_name, read_user_id

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
