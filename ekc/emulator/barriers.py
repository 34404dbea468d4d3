"""Barriers of a batch: waiting lanes, complete barriers, and deadlocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.geometry import DONE, WAITING
from ekc.emulator.lane_state import LaneState
from ekc.emulator.sanitizer.sanitizer import Sanitizer
from ekc.errors import EkcError
from ekc.ptx.cfg import Block
from ekc.ptx.module import Immediate, Instruction, Operand, Register
from ekc.tables import count_nouns

_BARRIER_HINT = "Every thread of a block must reach the barrier: move it out of the condition."


class Barriers:
    """The barrier at which each lane waits, and the block where it continues."""

    def __init__(self, batch: LaneState, sanitizer: Sanitizer | None) -> None:
        self.batch, self.sanitizer = batch, sanitizer
        lanes = batch.all_lanes.size
        self.block_count = len(batch.geometry.block_ids)
        self.lane_blocks = batch.geometry.block_numbers()
        self.waiting_barrier = np.full(lanes, -1, np.int64)
        self.expected_threads = np.zeros(lanes, np.int64)
        self.next_block = np.zeros(lanes, np.int32)
        self.waiting_line = np.zeros(lanes, np.int32)
        self.passed_count = 0
        self.instruction_by_line: dict[int, Instruction] = {}
        self.arrived_lanes: dict[int, Any] = {}
        """Lanes that went through `bar.arrive`, by barrier."""

    def pass_all_lanes(self, block: Block) -> bool:
        """Pass a barrier at which all lanes arrive together; False where that needs `arrive`."""
        one = block.exit.instruction
        assert one is not None
        number, count, reduction = self._parse_operands(one)
        if not isinstance(number, Immediate) or count is not None or reduction or "arrive" in one.parts:
            return False
        self.passed_count += self.block_count
        if self.sanitizer is not None:
            self.sanitizer.cross_barrier()
        return True

    def _parse_operands(self, instruction: Instruction) -> tuple[Operand, Operand | None, bool]:
        """Barrier number, thread count, and whether it reduces a predicate."""
        if instruction.guard is not None:
            place = f"PTX line {instruction.line}: {instruction.text}"
            raise EkcError(f"{place}: a guarded barrier is not emulated")
        operands = list(instruction.operands)
        if "red" in instruction.parts:
            operands = operands[1:-1]
        number = operands[0] if operands else Immediate(0)
        return number, operands[1] if len(operands) > 1 else None, "red" in instruction.parts

    def arrive(self, block: Block, active: Any) -> None:
        """Let some lanes arrive; lanes at complete barriers continue."""
        batch, one = self.batch, block.exit.instruction
        assert one is not None
        number, count, _ = self._parse_operands(one)
        self.instruction_by_line[one.line] = one
        at = batch.read_operand(number)
        if "arrive" in one.parts:
            for number in np.unique(at[active]):
                arrived = self.arrived_lanes.setdefault(int(number), np.zeros(active.shape, np.bool_))
                arrived |= active & (at == number)
            batch.pc[active] = block.exit.targets[0]
        else:
            self.waiting_barrier[active] = at[active]
            self.expected_threads[active] = 0 if count is None else batch.read_operand(count)[active]
            self.next_block[active] = block.exit.targets[0]
            self.waiting_line[active] = one.line
            batch.pc[active] = WAITING
        self.release()

    def release(self) -> None:
        """Release the lanes at every complete barrier.

        A barrier without a thread count waits for all threads that have not left the kernel (since compute
        capability 7).
        """
        waiting = self.waiting_barrier >= 0
        if not waiting.any():
            return
        alive = np.bincount(self.lane_blocks, self.batch.pc != DONE, self.block_count)
        for number in np.unique(self.waiting_barrier[waiting]):
            at_barrier = self.waiting_barrier == number
            present = np.bincount(self.lane_blocks, at_barrier, self.block_count)
            required = np.zeros(self.block_count)
            np.maximum.at(required, self.lane_blocks[at_barrier], self.expected_threads[at_barrier])
            arrivals = self.arrived_lanes.get(int(number))
            extra = 0 if arrivals is None else np.bincount(self.lane_blocks, arrivals, self.block_count)
            full = np.where(required > 0, present + extra >= required, present >= alive) & (present > 0)
            if full.any():
                lanes = at_barrier & full[self.lane_blocks]
                self._complete_barrier(lanes, full, (required > 0) & full, int(number))

    def _complete_barrier(self, lanes: Any, complete_blocks: Any, counted_blocks: Any, number: int) -> None:
        batch = self.batch
        self.passed_count += int(np.count_nonzero(complete_blocks))
        self._check_convergence(lanes)
        self._reduce_predicate(lanes)
        met = lanes | (complete_blocks & ~counted_blocks)[self.lane_blocks]
        if number in self.arrived_lanes:
            met |= self.arrived_lanes[number] & complete_blocks[self.lane_blocks]
            self.arrived_lanes[number] &= ~complete_blocks[self.lane_blocks]
        if self.sanitizer is not None:
            self.sanitizer.cross_barrier(met)
        batch.pc[lanes] = self.next_block[lanes]
        self.waiting_barrier[lanes] = -1

    def _check_convergence(self, lanes: Any) -> None:
        """A finding if lanes of one warp arrive at one barrier from different instructions.

        `bar` is `barrier.aligned`, which all lanes of a warp must execute as one.
        """
        if not self.batch.is_sanitized:
            return
        warp, line = self.batch.lane_warps[lanes], self.waiting_line[lanes]
        pairs = np.unique(np.stack([warp, line], axis=1), axis=0)
        split = pairs[1:, 0][pairs[1:, 0] == pairs[:-1, 0]]
        if split.size and not self._allows_divergence(pairs[:, 1]):
            self._report_split(lanes & np.isin(self.batch.lane_warps, split))

    def _report_split(self, lanes: Any) -> None:
        """A finding for each barrier at which some lanes of warps wait that wait at several."""
        batch = self.batch
        for line in np.unique(self.waiting_line[lanes]):
            lane = int(np.flatnonzero(lanes & (self.waiting_line == line))[0])
            warp = lanes & (batch.lane_warps == batch.lane_warps[lane])
            others = np.unique(self.waiting_line[warp & (self.waiting_line != line)])
            here, there = self._describe_place(line), " and ".join(map(self._describe_place, others))
            thread = lane % batch.geometry.threads_per_block
            message = f"thread {thread} waits at the barrier of {here}, others of its warp at that of {there}"
            batch.findings.add("barrier", self.instruction_by_line[int(line)], message, _BARRIER_HINT, lane)

    def _describe_place(self, line: int) -> str:
        """The line of a barrier in the PTX text, and in the CUDA text where the PTX has it."""
        source_line = self.instruction_by_line[int(line)].source_line
        return f"PTX line {line}" + (f" (source line {source_line})" if source_line else "")

    def _allows_divergence(self, lines: Any) -> bool:
        """Whether all these are `barrier.sync` without `.aligned`."""
        parts = [self.instruction_by_line[int(n)].parts for n in np.unique(lines)]
        return all(x[0] == "barrier" and "aligned" not in x for x in parts)

    def _report_missing(self, lanes: Any, missing: Any) -> None:
        """A finding for each barrier at which `lanes` wait: some lanes never come."""
        batch = self.batch
        for line in np.unique(self.waiting_line[lanes]):
            lane = int(np.flatnonzero(missing)[0])
            thread = lane % batch.geometry.threads_per_block
            count = count_nouns(int(missing.sum()), "thread")
            message = f"thread {thread} never reaches this barrier ({count} in all)"
            batch.findings.add("barrier", self.instruction_by_line[int(line)], message, _BARRIER_HINT, lane)

    def _reduce_predicate(self, lanes: Any) -> None:
        """`bar.red`: the reduction over the block goes to all its lanes."""
        for line in np.unique(self.waiting_line[lanes]):
            one = self.instruction_by_line[int(line)]
            if "red" not in one.parts:
                continue
            mine = lanes & (self.waiting_line == line)
            predicate = np.broadcast_to(self.batch.read_operand(one.operands[-1]), lanes.shape)
            votes = np.bincount(self.lane_blocks, mine & predicate, self.block_count)
            total = np.bincount(self.lane_blocks, mine, self.block_count)
            target = one.operands[0]
            assert isinstance(target, Register)
            kind, slot = self.batch.decoded.context.register_slots[target.name]
            result = votes if "popc" in one.parts else votes == total if "and" in one.parts else votes > 0
            row = self.batch.namespace[f"P{slot}" if kind == "P" else f"{kind}{slot}u"]
            row[mine] = result[self.lane_blocks][mine].astype(row.dtype)

    def resolve_deadlock(self) -> None:
        """No lane can run, and barriers will never be complete: report a finding and release the lanes."""
        lanes = self.waiting_barrier >= 0
        if self.sanitizer is not None:
            number, line = self.waiting_barrier[lanes][0], self.waiting_line[lanes][0]
            first = lanes & (self.waiting_barrier == number) & (self.waiting_line == line)
            missing = ~first & np.isin(self.lane_blocks, self.lane_blocks[first])
            self._report_missing(first, missing if missing.any() else first)
            self.sanitizer.cross_barrier()
        self.batch.pc[lanes] = self.next_block[lanes]
        self.waiting_barrier[lanes] = -1
