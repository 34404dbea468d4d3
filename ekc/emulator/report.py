"""The report of a launch: findings, counters, and the number of blocks that ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ekc.display import format_line
from ekc.emulator.counters import Counters
from ekc.emulator.geometry import Geometry, unravel_index
from ekc.emulator.memory import Access
from ekc.ptx.module import Instruction
from ekc.tables import count_nouns

MAX_FINDINGS = 64
"""Most findings that a launch keeps."""


@dataclass(frozen=True)
class Finding:
    """One error that the sanitizer found, reported for the first thread that shows it."""

    kind: str
    """Such as "out-of-bounds", "misaligned", "uninitialised", "race", "block-conflict", "read-only"."""
    message: str
    kernel: str
    instruction: str
    line: int
    """Line of the PTX text."""
    source_line: int | None
    """Line of the CUDA text, where the PTX carries one."""
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    address: int | None
    hint: str

    def __repr__(self) -> str:
        return format_line(self, f"{self.kind}: {self.message}")

    def __str__(self) -> str:
        where = f"block {self.block}, thread {self.thread}"
        source = f", source line {self.source_line}" if self.source_line else ""
        at = f", address {self.address:#x}" if self.address is not None else ""
        return (
            f"{self.kind}: {self.message} ({self.kernel}, PTX line {self.line}{source}: {self.instruction}; "
            f"{where}{at}). {self.hint}"
        )


class Findings:
    """The findings of a launch: at most one of each kind for each instruction."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.finding_by_site: dict[tuple[str, int], tuple[tuple[int, int], Finding]] = {}

    def list_findings(self) -> tuple[Finding, ...]:
        """All findings in order of the PTX text."""
        findings = (finding for _, finding in self.finding_by_site.values())
        return tuple(sorted(findings, key=lambda one: (one.line, one.kind)))


@dataclass(frozen=True)
class LaneFindings:
    """The findings of a launch, as the lanes of one batch add to them."""

    findings: Findings
    geometry: Geometry

    def add(
        self,
        kind: str,
        instruction: Instruction,
        message: str,
        hint: str,
        lane: int,
        address: int | None = None,
    ) -> None:
        """Add a finding of a lane. Of one kind and instruction, that of the lowest block and thread stays."""
        geometry, found = self.geometry, self.findings.finding_by_site
        number, thread = divmod(lane, geometry.threads_per_block)
        block = int(geometry.block_ids[number])
        key = kind, instruction.line
        old = found.get(key)
        if (block, thread) >= old[0] if old else len(found) >= MAX_FINDINGS:
            return
        places = unravel_index(block, geometry.grid), unravel_index(thread, geometry.block)
        text = instruction.short_text, instruction.line, instruction.source_line
        finding = Finding(kind, message, self.findings.kernel, *text, *places, address, hint)
        found[key] = ((block, thread), finding)

    def add_first(self, kind: str, instruction: Instruction, is_bad: Any, message: str, hint: str) -> None:
        """Add a finding of the first bad lane of all; nothing where none is bad."""
        if is_bad.any():
            self.add(kind, instruction, message, hint, int(np.flatnonzero(is_bad)[0]))

    def add_access(self, kind: str, access: Access, is_bad: Any, message: str, hint: str) -> None:
        """Add a finding of the first lane whose access is bad."""
        first, active = int(np.flatnonzero(is_bad)[0]), access.probe.act
        lane, address = first if active is None else int(active[first]), int(access.list_addresses()[first])
        self.add(kind, access.site.instruction, message, hint, lane, address)


@dataclass(frozen=True)
class Report:
    """The outcome of a launch."""

    kernel: str
    findings: tuple[Finding, ...]
    counters: Counters
    blocks_run: int
    total_blocks: int
    notes: tuple[str, ...] = ()

    @property
    def sampled(self) -> bool:
        """Whether only some of the blocks ran."""
        return self.blocks_run < self.total_blocks

    @property
    def clean(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def __repr__(self) -> str:
        part = f"{self.blocks_run} of {self.total_blocks} blocks"
        return format_line(self, f"{self.kernel}: {part}, {count_nouns(len(self.findings), 'finding')}")

    def __str__(self) -> str:
        part = f"{self.blocks_run} of {self.total_blocks} blocks"
        sampled = " (sampled: only their outputs are checked)" if self.sampled else ""
        lines = [f"{self.kernel}: {part}{sampled}, {count_nouns(len(self.findings), 'finding')}"]
        return "\n".join([*lines, *(f"  {finding}" for finding in self.findings), *self.notes])
