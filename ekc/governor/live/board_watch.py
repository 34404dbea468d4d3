"""Watches the processes on governed GPUs: says which share one with the job, and when a choice is refuted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ekc.devices.clocks.nvml_limits import NvmlLimitReader
from ekc.devices.nvml.library import list_uuids
from ekc.errors import ActuatorError
from ekc.governor.live.board_processes import BoardProcesses, ProcessLister, describe_processes
from ekc.governor.live.gpus import GpuChoice, SettledBoards, format_gpu_numbers
from ekc.processes.process_facts import has_own_process_numbers


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
