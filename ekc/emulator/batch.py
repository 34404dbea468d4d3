"""A batch: the lanes of some blocks, which run decoded kernels on NumPy arrays.

While all lanes are at the same block, its function runs on all of them. While they have diverged, the block
with the lowest number runs under a mask. The namespace of a batch holds everything that decoded text refers
to by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ekc.emulator.access import MemoryUnit
from ekc.emulator.barriers import Barriers
from ekc.emulator.cp_async import AsyncCopyUnit
from ekc.emulator.decode.decode import DecodedKernel
from ekc.emulator.functions import list_arithmetic_functions
from ekc.emulator.geometry import DONE, WAITING
from ekc.emulator.lane_state import LaneState
from ekc.emulator.numerics.warp import ballot
from ekc.emulator.plan import LaunchPlan
from ekc.emulator.sanitizer.in_flight import PendingCopies
from ekc.emulator.sanitizer.sanitizer import Sanitizer
from ekc.emulator.warps import WarpUnit
from ekc.emulator.wgmma import WgmmaUnit
from ekc.errors import EkcError
from ekc.ptx.cfg import Block
from ekc.ptx.constants import WARP_SIZE
from ekc.tables import count_nouns

_BELOW_FLOAT32, _HALFWAY = np.uint64(0x1FFFFFFF), np.uint64(0x10000000)
_SMALLEST_NORMAL = 2.0**-126
_VIEW_CODES = {"H": ("u2", "i2", "f2"), "W": ("u4", "i4", "f4"), "D": ("u8", "i8", "f8")}


def allocate_rows(batch: Batch) -> dict[str, Any]:
    """Register rows with their views, and scratch rows."""
    lanes = batch.all_lanes.size
    names: dict[str, Any] = {}
    for kind, count in batch.decoded.slot_counts.items():
        if kind == "P":
            names |= {f"P{i}": row for i, row in enumerate(np.zeros((count, lanes), np.bool_))}
            continue
        unsigned, signed, floating = _VIEW_CODES[kind]
        table = np.zeros((count, lanes), unsigned)
        for i, row in enumerate(table):
            names[f"{kind}{i}u"] = row
            names[f"{kind}{i}i"] = row.view(signed)
            names[f"{kind}{i}{'h' if kind == 'H' else 'f'}"] = row.view(floating)
    context = batch.decoded.context
    names |= {f"F{i}": row for i, row in enumerate(np.empty((context.scratch_row_count, lanes)))}
    names |= {f"I{i}": np.zeros(lanes, np.bool_) for i in range(len(context.maybe_unset_registers))}
    x, z = np.empty(lanes), np.empty(lanes, np.uint64)
    names |= {"X": x, "Y": np.empty(lanes), "XU": x.view(np.uint64), "Z": z, "zmin": z.min}
    return names | {"plain": _SingleRoundingCheck(x, z)}


class _SingleRoundingCheck:
    """Whether a float64 sum rounds to float32 without an error by double rounding.

    That holds for zero and for normal numbers that are not half-way between two float32 numbers."""

    def __init__(self, total: Any, scratch: Any) -> None:
        self.total, self.words, self.scratch = total, total.view(np.uint64), scratch
        self.magnitude, self.is_halfway = np.empty_like(total), np.empty(total.shape, np.bool_)

    def __call__(self) -> bool:
        np.bitwise_and(self.words, _BELOW_FLOAT32, out=self.scratch)
        if np.equal(self.scratch, _HALFWAY, out=self.is_halfway).any():
            return False
        np.abs(self.total, out=self.magnitude)
        # Zero turns into a large number, NaN stays and fails.
        np.copyto(self.magnitude, 1.0, where=np.equal(self.magnitude, 0.0, out=self.is_halfway))
        return bool(self.magnitude.min() >= _SMALLEST_NORMAL)


def build_namespace(batch: Batch) -> dict[str, Any]:
    """All names that decoded text refers to."""
    context, access, warps = batch.decoded.context, batch.memory_unit, batch.warp_unit
    namespace = list_arithmetic_functions() | allocate_rows(batch) | context.constants
    namespace |= batch.geometry.special_registers()
    namespace |= {
        "probe": access.probe, "load": access.load, "store": access.store, "atomic": access.atomic,
        "copies": batch.async_copies, "products": batch.wgmma_unit, "is_set": batch.check_initialized,
        "parameter": batch.plan.read_parameter, "clock": batch.read_clock,
        "EVERY": np.ones(batch.all_lanes.size, np.bool_),
        "shuffle": warps.shuffle, "vote": warps.vote, "redux": warps.redux, "match": warps.match,
        "tensor": warps.multiply_fragments, "ldmatrix": warps.load_matrices, "warp_epoch": batch.sync_warps,
    }  # fmt: skip
    _bind_address_rows(batch, namespace)
    return namespace


def extend_namespace(batch: Batch) -> None:
    """Add the names that a masked function needs."""
    constants = batch.decoded.context.constants
    batch.namespace |= {name: value for name, value in constants.items() if name not in batch.namespace}
    _bind_address_rows(batch, batch.namespace)


def _bind_address_rows(batch: Batch, namespace: dict[str, Any]) -> None:
    for (code, symbol), row in batch.decoded.context.address_rows.items():
        if row not in namespace:
            namespace[row] = np.full(batch.all_lanes.size, batch.plan.resolve_address(symbol), code)


class Batch(LaneState):
    """The lanes of some blocks, with their registers, memory and program counters."""

    memory_unit_type: type[MemoryUnit] = MemoryUnit
    fairness_interval = 97
    """Every so many masked steps the highest block runs instead of the lowest, so that lanes that wait in a
    loop for what others write do not wait forever."""

    def __init__(self, decoded: DecodedKernel, plan: LaunchPlan, ids: Any) -> None:
        super().__init__(decoded, plan, ids)
        self.warp_starts = np.flatnonzero(np.r_[True, self.lane_warps[1:] != self.lane_warps[:-1]])
        self._make_units()
        self.namespace |= build_namespace(self)
        exec(decoded.code, self.namespace)
        count = len(decoded.blocks)
        self.unmasked_functions: list[Callable[[Any], None]] = [self.namespace[f"b{i}"] for i in range(count)]
        self.masked_functions: dict[int, Callable[[Any], None]] = {}
        self.counts, self.issued_instructions = plan.counts, 0

    def _make_units(self) -> None:
        """The units that decoded text calls, and the checks that they call."""
        plan, pending_copies = self.plan, PendingCopies(self.findings)
        self.sanitizer: Sanitizer | None = None
        if plan.block_races is not None:
            self.sanitizer = Sanitizer(self, pending_copies, plan.block_races, plan.has_wgmma)
        self.memory_unit = self.memory_unit_type(self, self.sanitizer)
        self.warp_unit = WarpUnit(self, self.memory_unit)
        self.async_copies = AsyncCopyUnit(self, self.memory_unit, pending_copies, self.sanitizer)
        self.wgmma_unit = WgmmaUnit(self, self.sanitizer)
        self.barriers = Barriers(self, self.sanitizer)

    def close(self) -> None:
        """Drop all references. Units and functions refer to the batch, so it would keep its registers and
        memory until the garbage collector runs."""
        self.namespace.clear()
        vars(self).clear()

    # -- what decoded text calls ------------------------------------------------------------------
    def read_clock(self, dtype_code: str) -> Any:
        """A clock that counts issued instructions."""
        return np.dtype(dtype_code).type(self.issued_instructions)

    def check_initialized(self, site_number: int, is_written: Any, register: str, mask: Any) -> None:
        """A finding if an active lane reads a register that it never wrote."""
        if not self.is_sanitized or is_written.all():
            return
        bad = ~is_written if mask is None else mask & ~is_written
        if not bad.any():
            return
        lanes = count_nouns(int(bad.sum()), "lane")
        self.findings.add_first(
            "uninitialised",
            self.sites[site_number].instruction,
            bad,
            message=f"reads register {register}, which was never set, in {lanes}",
            hint="Look for a variable or an accumulator without a first value.",
        )

    def sync_warps(self, member_masks: Any, mask: Any) -> None:
        """`bar.warp.sync`: accesses of the lanes before it and after it are ordered."""
        if self.sanitizer is not None:
            lanes = np.ones(self.all_lanes.size, np.bool_) if mask is None else mask
            members = np.broadcast_to(member_masks, self.all_lanes.shape)
            self.sanitizer.races.sync_lanes(lanes, members, ballot(self.warp_unit.pad_warps(self.pc != DONE)))

    # -- running ----------------------------------------------------------------------------------
    def run(self) -> None:
        """Run all lanes from the entry to their end."""
        with np.errstate(all="ignore"):
            at: int | None = 0
            while at is not None:
                self._run_converged(at)
                at = self._run_diverged()
        if self.sanitizer is not None:
            self.sanitizer.races.close_interval()

    def _charge_budget(self, block: Block) -> None:
        self.issued_instructions += block.instruction_count
        if self.issued_instructions > self.plan.max_instructions:
            line, most = self._find_line(block), self.plan.max_instructions
            raise EkcError(
                f"kernel {self.plan.kernel_name}: more than {most} instructions per thread at PTX line "
                f"{line}; end its loop, or use a larger max_instructions"
            )

    def _find_line(self, block: Block) -> int:
        one = block.exit.instruction or (block.code[0] if block.code else None)
        return one.line if one else 0

    def _run_converged(self, block_number: int) -> None:
        """Run all lanes together, up to the block after which they diverge, wait or are done."""
        blocks, functions = self.decoded.blocks, self.unmasked_functions
        lanes, warps = self.all_lanes.size, len(self.warp_starts)
        while True:
            block = blocks[block_number]
            self._charge_budget(block)
            self.counts.lane_runs[block_number] += lanes
            self.counts.warp_runs[block_number] += warps
            functions[block_number](None)
            kind, targets = block.exit.kind, block.exit.targets
            taken = np.count_nonzero(self._evaluate_branch(block)) if kind == "branch" else lanes
            if kind in ("jump", "branch") and taken in (0, lanes):
                block_number = targets[0] if taken else targets[1]
            elif kind == "barrier" and self.barriers.pass_all_lanes(block):
                block_number = targets[0]
            else:
                self.pc = np.full(lanes, block_number, np.int32)
                self._exit_block(block, np.ones(lanes, np.bool_))
                return

    def _run_diverged(self) -> int | None:
        """Run diverged lanes, lowest block first, up to the block where all converge, or the end (None)."""
        turn = 0
        while True:
            low = int(self.pc.min())
            if low >= WAITING:
                if low == DONE:
                    return None
                self.barriers.resolve_deadlock()
                continue
            turn += 1
            if turn % self.fairness_interval == 0:
                low = int(self.pc[self.pc < WAITING].max())
            mask = self.pc == low
            if mask.all():
                return low
            low, mask = self._select_ready(low, mask)
            block = self.decoded.blocks[low]
            self._charge_budget(block)
            self.counts.lane_runs[low] += int(np.count_nonzero(mask))
            active_warps = np.logical_or.reduceat(mask, self.warp_starts)
            self.counts.warp_runs[low] += int(np.count_nonzero(active_warps))
            self._find_masked_function(low)(mask)
            self._exit_block(block, mask)

    def _select_ready(self, block_number: int, mask: Any) -> tuple[int, Any]:
        """Choose the lanes that run. Where a block needs a whole warp (or warpgroup), lanes of a warp that is
        not complete wait for the others, if any of these can run."""
        together = self.decoded.blocks[block_number].convergence_width
        if together == 1:
            return block_number, mask
        running = self.pc < WAITING
        starts = self.warp_starts if together == WARP_SIZE else self.warpgroup_layout.group_starts
        missing = np.logical_or.reduceat(running & ~mask, starts)
        if not missing.any():
            return block_number, mask
        late = np.repeat(missing, np.diff(np.r_[starts, self.all_lanes.size]))
        ready = mask & ~late
        if ready.any():
            return block_number, ready
        others = running & ~mask & late
        places = self.pc[others]
        ahead = [int(p) for p in np.unique(places) if self.decoded.blocks[p].convergence_width == 1]
        if not ahead:
            return block_number, mask
        return ahead[0], self.pc == ahead[0]

    def _find_masked_function(self, number: int) -> Callable[[Any], None]:
        if number not in self.masked_functions:
            code = self.decoded.compile_masked(number)
            extend_namespace(self)
            exec(code, self.namespace)
            self.masked_functions[number] = self.namespace[f"m{number}"]
        return self.masked_functions[number]

    def _exit_block(self, block: Block, active: Any) -> None:
        """Move the active lanes to their next blocks."""
        kind, targets = block.exit.kind, block.exit.targets
        taken = active
        if kind in ("branch", "exit_if"):
            taken = self._evaluate_branch(block) & active
            self._count_divergence(taken, active & ~taken)
            self.pc[active] = targets[-1]
        if kind in ("jump", "branch"):
            self.pc[taken] = targets[0]
        elif kind in ("exit", "exit_if"):
            self._report_trap(block, np.flatnonzero(taken))
            self.pc[taken] = DONE
            self.barriers.release()
        elif kind == "switch":
            assert block.exit.instruction is not None
            index = self.read_operand(block.exit.instruction.operands[0])
            self.pc[active] = np.array(targets, np.int32)[np.minimum(index, len(targets) - 1)][active]
        else:
            self.barriers.arrive(block, active)

    def _report_trap(self, block: Block, lanes: Any) -> None:
        """A finding for lanes that end by `trap`: a failed assertion, or code that must not be reached."""
        one = block.exit.instruction
        if one is not None and one.parts[0] == "trap" and lanes.size:
            self.findings.add(
                "trap",
                one,
                message=f"{lanes.size} threads stop by trap",
                hint="An assertion failed, or the kernel reached code that must not run.",
                lane=int(lanes[0]),
            )
            self.barriers.excused[lanes] = True

    def _evaluate_branch(self, block: Block) -> Any:
        assert block.exit.instruction is not None
        assert block.exit.instruction.guard is not None
        return self.read_operand(block.exit.instruction.guard)

    def _count_divergence(self, taken: Any, other: Any) -> None:
        """Count the warps that a branch splits."""
        split = [np.logical_or.reduceat(lanes, self.warp_starts) for lanes in (taken, other)]
        self.counts.divergent_branches += int(np.count_nonzero(split[0] & split[1]))
