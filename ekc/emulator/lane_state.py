"""The state of a batch of lanes that its units (memory, warps, barriers, ...) read and change."""

from __future__ import annotations

from typing import Any, Protocol

from ekc.emulator.decode.decode import DecodedKernel
from ekc.emulator.geometry import Geometry, WarpgroupLayout
from ekc.emulator.memory import AddressSpace
from ekc.emulator.report import Findings
from ekc.ptx.module import Operand


class LaneState(Protocol):
    """The lanes of some blocks; arrays have one item for each lane."""

    decoded: DecodedKernel
    geometry: Geometry
    warpgroup_layout: WarpgroupLayout
    findings: Findings
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
