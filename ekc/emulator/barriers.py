"""Barriers of a batch: waiting lanes, complete barriers, and deadlocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.geometry import DONE, WAITING
from ekc.emulator.lane_state import LaneState
from ekc.emulator.sanitizer.sanitizer import Sanitizer
from ekc.ptx.cfg import Block
from ekc.ptx.constants import WARP_SIZE
from ekc.ptx.module import Immediate, Instruction, Operand, Register
from ekc.tables import count_nouns

_BARRIER_HINT = (
    "Every thread of a block must reach the barrier: put the work in the condition, not the barrier."
)


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
        self.instruction_by_line: dict[int, Instruction] = {}
        self.arrived_lanes: dict[int, Any] = {}
        """Lanes that went through `bar.arrive`, by barrier."""
        self.excused = np.zeros(lanes, np.bool_)
        """Lanes that ended by `trap`, or that a finding names already: they may miss barriers."""
        self.arrival_counts = np.ones(lanes)
        """Threads that each lane counts for: the last of a short warp also for those that the warp lacks."""
        warp_sizes = np.bincount(batch.lane_warps)
        self.arrival_counts[np.cumsum(warp_sizes) - 1] += WARP_SIZE - warp_sizes

    def pass_all_lanes(self, block: Block) -> bool:
        """Pass a barrier at which all lanes arrive together; False where that needs `arrive`."""
        one = block.exit.instruction
        assert one is not None
        number, count, reduction = self._parse_operands(one)
        if not isinstance(number, Immediate) or count is not None or reduction or "arrive" in one.parts:
            return False
        self.batch.plan.counts.passed_barriers += self.block_count
        if self.sanitizer is not None:
            self.sanitizer.cross_barrier()
        return True

    def _parse_operands(self, instruction: Instruction) -> tuple[Operand, Operand | None, bool]:
        """Barrier number, thread count, and whether it reduces a predicate."""
        if instruction.guard is not None:
            raise instruction.make_error("a guarded barrier is not emulated")
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
        capability 7). Those that left without it are a finding.
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
            full = (present > 0) & (present >= alive)
            if required.any():
                full = np.where(required > 0, self._count_arrivals(int(number), at_barrier) >= required, full)
            if full.any():
                lanes = at_barrier & full[self.lane_blocks]
                self._complete_barrier(lanes, full, (required > 0) & full, int(number))

    def _count_arrivals(self, number: int, at_barrier: Any) -> Any:
        """Threads of each block that count at a barrier with a thread count, which counts whole warps: lanes
        that have left count with the others of their warp."""
        has_lane = np.bincount(self.batch.lane_warps, at_barrier) > 0
        arrived = at_barrier | (has_lane[self.batch.lane_warps] & (self.batch.pc == DONE))
        if number in self.arrived_lanes:
            arrived = arrived | self.arrived_lanes[number]
        return np.bincount(self.lane_blocks, arrived * self.arrival_counts, self.block_count)

    def _complete_barrier(self, lanes: Any, complete_blocks: Any, counted_blocks: Any, number: int) -> None:
        batch = self.batch
        batch.plan.counts.passed_barriers += int(np.count_nonzero(complete_blocks))
        met = lanes | (complete_blocks & ~counted_blocks)[self.lane_blocks]
        if number in self.arrived_lanes:
            met |= self.arrived_lanes[number] & complete_blocks[self.lane_blocks]
        if self.sanitizer is not None:
            self._check_missing(lanes, met, counted_blocks)
            self._check_split(lanes, counted_blocks, number)
        self._reduce_predicate(lanes)
        if number in self.arrived_lanes:
            self.arrived_lanes[number] &= ~complete_blocks[self.lane_blocks]
        if self.sanitizer is not None:
            self.sanitizer.cross_barrier(met)
        batch.pc[lanes] = self.next_block[lanes]
        self.waiting_barrier[lanes] = -1

    def _check_missing(self, lanes: Any, met: Any, counted_blocks: Any) -> None:
        """A finding if threads left the kernel without the barrier at which `lanes` met.

        A barrier without a thread count is for all threads of the block. One with a count is for some warps,
        and where it is aligned for all lanes of each of them.
        """
        missing = met & ~lanes & (self.batch.pc == DONE)
        if counted_blocks.any():
            has_lane = np.bincount(self.batch.lane_warps, lanes) > 0
            partial = has_lane[self.batch.lane_warps] & ~lanes & counted_blocks[self.lane_blocks]
            if partial.any() and not self._allows_divergence(self.waiting_line[lanes]):
                missing |= partial
        missing &= ~self.excused
        if missing.any():
            self._report_missing(lanes, missing)
            self.excused |= missing

    def _check_split(self, lanes: Any, counted_blocks: Any, number: int) -> None:
        """A finding if threads met at one barrier from different instructions that must run it as one.

        `bar` is `barrier.aligned`, which all lanes of a warp must execute together. Barrier 0 without a
        thread count is `__syncthreads()`, which all threads of a block must execute together.
        """
        lines = self.waiting_line[lanes]
        if (lines == lines[0]).all():
            return
        is_whole = ~counted_blocks[self.lane_blocks] & (number == 0)
        group = np.where(is_whole, self.lane_blocks, self.block_count + self.batch.lane_warps)
        pairs = np.unique(np.stack([group[lanes], lines], axis=1), axis=0)
        split = pairs[1:, 0][pairs[1:, 0] == pairs[:-1, 0]]
        mixed = lanes & np.isin(group, split)
        if split.size and not self._allows_divergence(self.waiting_line[mixed]):
            self._report_split(mixed, group)

    def _report_split(self, lanes: Any, group: Any) -> None:
        """A finding for each barrier at which some threads of warps or blocks wait that wait at several."""
        batch = self.batch
        for line in np.unique(self.waiting_line[lanes]):
            lane = int(np.flatnonzero(lanes & (self.waiting_line == line))[0])
            together = lanes & (group == group[lane])
            others = np.unique(self.waiting_line[together & (self.waiting_line != line)])
            here, there = self._describe_place(line), " and ".join(map(self._describe_place, others))
            thread = lane % batch.geometry.threads_per_block
            whole = "block" if group[lane] < self.block_count else "warp"
            batch.findings.add(
                "barrier",
                self.instruction_by_line[int(line)],
                message=(
                    f"thread {thread} waits at the barrier of {here}, "
                    f"others of its {whole} at that of {there}"
                ),
                hint=_BARRIER_HINT,
                lane=lane,
            )

    def _describe_place(self, line: int) -> str:
        """The line of a barrier in the PTX text, and in the CUDA text where the PTX has it."""
        source_line = self.instruction_by_line[int(line)].source_line
        return f"PTX line {line}" + (f" (source line {source_line})" if source_line else "")

    def _allows_divergence(self, lines: Any) -> bool:
        """Whether all these are `barrier.sync` without `.aligned`."""
        parts = [self.instruction_by_line[int(n)].parts for n in np.unique(lines)]
        return all(x[0] == "barrier" and "aligned" not in x for x in parts)

    def _report_missing(self, lanes: Any, missing: Any) -> None:
        """A finding for each barrier at which `lanes` wait in the first block that misses some."""
        batch, size = self.batch, self.batch.geometry.threads_per_block
        lane = int(np.flatnonzero(missing)[0])
        in_block = self.lane_blocks == self.lane_blocks[lane]
        threads = np.flatnonzero(missing & in_block) % size
        count = f"{threads.size} of {count_nouns(size, 'thread')} of the block"
        has_left = batch.pc[lane] == DONE
        what = "leaves the kernel without reaching" if has_left else "never reaches"
        for line in np.unique(self.waiting_line[lanes & in_block]):
            batch.findings.add(
                "barrier",
                self.instruction_by_line[int(line)],
                message=f"thread {threads[0]} {what} this barrier ({count})",
                hint=_BARRIER_HINT,
                lane=lane,
            )

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
            result = votes if "popc" in one.parts else votes == total if "and" in one.parts else votes > 0
            row = self.batch.find_row(target)
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
