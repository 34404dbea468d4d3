"""Barriers of a batch: who waits where, and what happens when nobody else will come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ekc.emulator.ptx.cfg import Block
from ekc.emulator.ptx.program import Immediate, Instruction, Operand, Register
from ekc.errors import EkcError

if TYPE_CHECKING:
    from ekc.emulator.batch import Batch


class Barriers:
    """State of every lane: which barrier it waits at, and where it goes on."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        lanes = batch.every.size
        self.blocks = len(batch.geometry.ids)
        self.block = batch.geometry.block_numbers()
        self.at = np.full(lanes, -1, np.int64)
        self.count = np.zeros(lanes, np.int64)
        self.next = np.zeros(lanes, np.int32)
        self.line = np.zeros(lanes, np.int32)
        self.passed = 0
        self.statement: dict[int, Instruction] = {}
        self.arrived: dict[int, Any] = {}
        """Lanes that went through `bar.arrive`, by barrier."""

    def everyone(self, block: Block) -> bool:
        """The short way: all lanes arrive at a plain barrier at once."""
        one = block.exit.instruction
        assert one is not None
        number, count, reduction = self._operands(one)
        if not isinstance(number, Immediate) or count is not None or reduction or "arrive" in one.parts:
            return False
        self.passed += self.blocks
        if self.batch.sanitize:
            self.batch.watch.barrier()
        return True

    def _operands(self, one: Instruction) -> tuple[Operand, Operand | None, bool]:
        """Barrier number, thread count, and whether it reduces a predicate."""
        if one.guard is not None:
            raise EkcError(f"PTX line {one.line}: {one.text}: a guarded barrier is not emulated")
        operands = list(one.operands)
        if "red" in one.parts:
            operands = operands[1:-1]
        number = operands[0] if operands else Immediate(0)
        return number, operands[1] if len(operands) > 1 else None, "red" in one.parts

    def arrive(self, block: Block, active: Any) -> None:
        """Some lanes arrive; those of complete barriers go on."""
        from ekc.emulator.batch import WAITING

        batch, one = self.batch, block.exit.instruction
        assert one is not None
        number, count, _ = self._operands(one)
        self.statement[one.line] = one
        at = batch.value(number)
        if "arrive" in one.parts:
            for number in np.unique(at[active]):
                known = self.arrived.setdefault(int(number), np.zeros(active.shape, np.bool_))
                known |= active & (at == number)
            batch.pc[active] = block.exit.targets[0]
        else:
            self.at[active] = at[active]
            self.count[active] = 0 if count is None else batch.value(count)[active]
            self.next[active] = block.exit.targets[0]
            self.line[active] = one.line
            batch.pc[active] = WAITING
        self.release()

    def release(self) -> None:
        """Let go every barrier that is complete.

        One without a count waits for the threads that have not left the kernel (since compute capability 7).
        """
        waiting = self.at >= 0
        if not waiting.any():
            return
        from ekc.emulator.batch import DONE

        alive = np.bincount(self.block, self.batch.pc != DONE, self.blocks)
        for number in np.unique(self.at[waiting]):
            here = self.at == number
            present = np.bincount(self.block, here, self.blocks)
            wanted = np.zeros(self.blocks)
            np.maximum.at(wanted, self.block[here], self.count[here])
            came = self.arrived.get(int(number))
            extra = 0 if came is None else np.bincount(self.block, came, self.blocks)
            full = np.where(wanted > 0, present + extra >= wanted, present >= alive) & (present > 0)
            if full.any():
                self._go(here & full[self.block], full, (wanted > 0) & full, int(number))

    def _go(self, lanes: Any, full: Any, counted: Any, number: int) -> None:
        batch = self.batch
        self.passed += int(np.count_nonzero(full))
        self._aligned(lanes)
        self._reduce(lanes)
        met = lanes | (full & ~counted)[self.block]
        if number in self.arrived:
            met |= self.arrived[number] & full[self.block]
            self.arrived[number] &= ~full[self.block]
        if batch.sanitize:
            batch.watch.barrier(met)
        batch.pc[lanes] = self.next[lanes]
        self.at[lanes] = -1

    def _aligned(self, lanes: Any) -> None:
        """A finding if lanes of one warp met here from different instructions.

        `bar` is `barrier.aligned`, which all lanes of a warp must execute as one.
        """
        if not self.batch.sanitize:
            return
        warp, line = self.batch.warp[lanes], self.line[lanes]
        pairs = np.unique(np.stack([warp, line], axis=1), axis=0)
        split = pairs[1:, 0][pairs[1:, 0] == pairs[:-1, 0]]
        if split.size and not self._may_part(pairs[:, 1]):
            self._tell(lanes, lanes & (self.batch.warp == split[0]), "meets others of its warp at another")

    def _may_part(self, lines: Any) -> bool:
        """Whether all these are `barrier.sync` without `.aligned`."""
        return all(
            self.statement[int(n)].parts[0] == "barrier" and "aligned" not in self.statement[int(n)].parts
            for n in np.unique(lines)
        )

    def _tell(self, lanes: Any, missing: Any, what: str) -> None:
        batch = self.batch
        for line in np.unique(self.line[lanes]):
            lane = int(np.flatnonzero(missing)[0])
            thread = lane % batch.geometry.threads
            message = f"thread {thread} {what} ({int(missing.sum())} threads in all)"
            hint = "Every thread of a block must reach the barrier: move it out of the condition."
            batch.plan.findings.add(
                "barrier", self.statement[int(line)], message, hint, (batch.geometry, lane)
            )

    def _reduce(self, lanes: Any) -> None:
        """`bar.red`: the reduction over the block goes to all its lanes."""
        for line in np.unique(self.line[lanes]):
            one = self.statement[int(line)]
            if "red" not in one.parts:
                continue
            mine = lanes & (self.line == line)
            predicate = np.broadcast_to(self.batch.value(one.operands[-1]), lanes.shape)
            votes = np.bincount(self.block, mine & predicate, self.blocks)
            total = np.bincount(self.block, mine, self.blocks)
            target = one.operands[0]
            assert isinstance(target, Register)
            kind, slot = self.batch.decoded.shelf.places[target.name]
            result = votes if "popc" in one.parts else votes == total if "and" in one.parts else votes > 0
            row = self.batch.names[f"P{slot}" if kind == "P" else f"{kind}{slot}u"]
            row[mine] = result[self.block][mine].astype(row.dtype)

    def stuck(self) -> None:
        """Nobody can run: lanes wait at barriers that will never be complete. Tell, and let them go."""
        lanes = self.at >= 0
        if self.batch.sanitize:
            number = self.at[lanes][0]
            first = lanes & (self.at == number) & (self.line == self.line[lanes][0])
            missing = ~first & np.isin(self.block, self.block[first])
            self._tell(first, missing if missing.any() else first, "never reaches this barrier")
            self.batch.watch.barrier()
        self.batch.pc[lanes] = self.next[lanes]
        self.at[lanes] = -1
