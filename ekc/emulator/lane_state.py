"""The state of a batch of lanes that its units (memory, warps, barriers, ...) read and change."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.decode.decode import DecodedKernel
from ekc.emulator.geometry import Geometry, WarpgroupLayout
from ekc.emulator.plan import LaunchPlan
from ekc.emulator.report import LaneFindings
from ekc.ptx.constants import WARP_SIZE
from ekc.ptx.module import Immediate, Operand, Register


class LaneState:
    """The lanes of some blocks; arrays have one item for each lane."""

    def __init__(self, decoded: DecodedKernel, plan: LaunchPlan, ids: Any) -> None:
        self.decoded, self.plan, self.is_sanitized = decoded, plan, plan.is_sanitized
        self.sites = decoded.context.sites
        """Memory instructions and others, by the numbers that decoded text has."""
        self.geometry = geometry = Geometry(plan.grid, plan.block, np.asarray(ids, np.int64))
        self.findings = LaneFindings(plan.findings, geometry)
        self.warpgroup_layout = WarpgroupLayout(geometry)
        self.all_lanes = np.arange(geometry.lane_count)
        self.lane_warps = geometry.block_numbers() * geometry.warps_per_block
        """Number of the warp of each lane."""
        self.lane_warps += geometry.thread_numbers() // WARP_SIZE
        self.spaces = plan.make_spaces(geometry)
        """Memory by space: "global", "shared" and "local"."""
        self.shared_base = geometry.block_numbers() * plan.shared_stride
        """Offset in `spaces["shared"]` at which the memory of each lane's block begins."""
        self.local_base = self.all_lanes * plan.local_stride
        """Offset in `spaces["local"]` at which each lane's own memory begins."""
        self.pc = np.zeros(geometry.lane_count, np.int32)
        """The block that each lane runs next while lanes have diverged; or WAITING, or DONE."""
        self.namespace: dict[str, Any] = {}
        """Register rows and functions, by the names that decoded text uses."""

    def find_row(self, register: Register) -> Any:
        """The row of a register: unsigned numbers, or truth values."""
        kind, slot = self.decoded.context.register_slots[register.name]
        return self.namespace[f"P{slot}" if kind == "P" else f"{kind}{slot}u"]

    def read_operand(self, operand: Operand) -> Any:
        """A 32-bit operand of an instruction that ends a block, one value for each lane."""
        if isinstance(operand, Immediate):
            return np.full(self.all_lanes.size, operand.value, np.int64)
        assert isinstance(operand, Register)
        row = self.find_row(operand)
        return ~row if operand.is_negated else row
