"""The state of a batch of lanes that its units (memory, warps, barriers, ...) read and change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ekc.emulator.decode.context import Site
from ekc.emulator.decode.decode import DecodedKernel
from ekc.emulator.geometry import Geometry, WarpgroupLayout
from ekc.emulator.memory import AddressProbe, AddressSpace
from ekc.emulator.report import Findings
from ekc.ptx.module import Instruction, Operand


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
        """Add a finding of a lane."""
        self.findings.add(kind, instruction, message, hint, self.geometry, lane, address)

    def add_access(
        self, kind: str, site: Site, probe: AddressProbe, offset: int, is_bad: Any, message: str, hint: str
    ) -> None:
        """Add a finding of the first lane whose access is bad."""
        first = int(np.flatnonzero(is_bad)[0])
        lane = first if probe.act is None else int(probe.act[first])
        self.add(kind, site.instruction, message, hint, lane, int(probe.address[first]) + offset)


class LaneState(Protocol):
    """The lanes of some blocks; arrays have one item for each lane."""

    decoded: DecodedKernel
    sites: list[Site]
    """Memory instructions and others, by the numbers that decoded text has."""
    geometry: Geometry
    warpgroup_layout: WarpgroupLayout
    findings: LaneFindings
    is_sanitized: bool
    """Whether findings are looked for."""
    spaces: dict[str, AddressSpace]
    """Memory by space: "global", "shared" and "local"."""
    all_lanes: Any
    """Numbers of the lanes: 0, 1, 2, ..."""
    lane_warps: Any
    """Number of the warp of each lane."""
    shared_base: Any
    """Offset in `spaces["shared"]` at which the memory of each lane's block begins."""
    local_base: Any
    """Offset in `spaces["local"]` at which each lane's own memory begins."""
    pc: Any
    """Number of the block that each lane runs next, or WAITING or DONE."""
    namespace: dict[str, Any]
    """Register rows and functions, by the names that decoded text uses."""

    def read_operand(self, operand: Operand) -> Any:
        """A 32-bit operand of an instruction that ends a block, one value for each lane."""
