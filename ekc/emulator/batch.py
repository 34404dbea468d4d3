"""The lanes of some blocks run together: in one stride while they agree, by masks while they do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ekc.emulator import bind
from ekc.emulator.access import Access
from ekc.emulator.barriers import Barriers
from ekc.emulator.copies import Copies
from ekc.emulator.decoding.decode import Decoded
from ekc.emulator.geometry import WARP, Geometry
from ekc.emulator.numbers.lanes import ballot
from ekc.emulator.products import Products
from ekc.emulator.ptx.cfg import Block
from ekc.emulator.sanitizer.sanitize import Bounds
from ekc.emulator.sanitizer.watch import Watch
from ekc.emulator.warps import Warps
from ekc.errors import EkcError

if TYPE_CHECKING:
    from ekc.emulator.plan import Plan

WAITING, DONE = np.int32(2**30), np.int32(2**30 + 1)
_PATIENCE = 97
"""Every so many masked steps another place runs than the lowest, so that no lane waits for ever."""


@dataclass(frozen=True)
class Tally:
    """What a batch did, by number of block or of site; it refers to nothing of the batch."""

    lane_runs: list[int]
    warp_runs: list[int]
    requests: list[int]
    sectors: list[int]
    wavefronts: list[int]
    conflicts: list[int]
    bytes: list[int]
    barriers: int
    divergent: int


class Batch:
    """Registers, shared and local memory, and where every lane stands."""

    access_type: type[Access] = Access

    def __init__(self, decoded: Decoded, plan: Plan, ids: Any) -> None:
        self.decoded, self.plan, self.sanitize = decoded, plan, plan.sanitize
        self.geometry = Geometry(plan.grid, plan.block, np.asarray(ids, np.int64))
        geometry = self.geometry
        self.every = np.arange(geometry.lanes)
        self.warp = geometry.block_numbers() * geometry.block_warps + geometry.thread_numbers() // WARP
        self.starts = np.flatnonzero(np.r_[True, self.warp[1:] != self.warp[:-1]])
        self.spaces = plan.spaces(geometry)
        self.shared_base = geometry.block_numbers() * plan.shared_stride
        self.local_base = self.every * plan.local_stride
        self.access, self.warps, self.copies = self.access_type(self), Warps(self), Copies(self)
        self.products = Products(self)
        self.bounds = Bounds(plan.findings, geometry, self.every)
        if self.sanitize:
            self.watch = Watch(self)
        self.barriers = Barriers(self)
        self.names = bind.names(self)
        exec(decoded.code, self.names)
        count = len(decoded.blocks)
        self.whole: list[Callable[[Any], None]] = [self.names[f"b{i}"] for i in range(count)]
        self.masked: dict[int, Callable[[Any], None]] = {}
        self.lane_runs, self.warp_runs = [0] * count, [0] * count
        self.pc = np.zeros(geometry.lanes, np.int32)
        """Where each lane stands while they do not run together."""
        self.steps = 0
        self.divergent = 0

    def close(self) -> None:
        """Let go of everything: helpers and decoded functions point back here, and such rings would keep
        registers, shadows and global memory until the collector comes by."""
        self.names.clear()
        vars(self).clear()

    def tally(self) -> Tally:
        """What was done so far."""
        access = self.access
        return Tally(
            self.lane_runs,
            self.warp_runs,
            access.requests,
            access.sectors,
            access.wavefronts,
            access.conflicts,
            access.bytes,
            self.barriers.passed,
            self.divergent,
        )

    # -- what decoded text calls ------------------------------------------------------------------
    def clock(self, code: str) -> Any:
        """A clock that counts issued instructions."""
        return np.dtype(code).type(self.steps)

    def is_set(self, number: int, row: Any, name: str, mask: Any) -> None:
        """A finding if an active lane reads a register that it never wrote."""
        if not self.sanitize or row.all():
            return
        bad = ~row if mask is None else mask & ~row
        if not bad.any():
            return
        one = self.decoded.shelf.sites[number].instruction
        message = f"reads register {name}, which was never set, in {int(bad.sum())} lanes"
        hint = "Look for a variable or an accumulator without a first value."
        place = (self.geometry, int(np.flatnonzero(bad)[0]))
        self.plan.findings.add("uninitialised", one, message, hint, place)

    def warp_epoch(self, member: Any, mask: Any) -> None:
        """Lanes of warps met: their accesses before and after are ordered."""
        if self.sanitize:
            lanes = np.ones(self.every.size, np.bool_) if mask is None else mask
            members = np.broadcast_to(member, self.every.shape)
            self.watch.races.meet(lanes, members, ballot(self.warps.spread(self.pc != DONE)))

    # -- running ----------------------------------------------------------------------------------
    def run(self) -> None:
        """From the entry to the end of every lane."""
        with np.errstate(all="ignore"):
            at: int | None = 0
            while at is not None:
                at = self._together(at)
                if at is not None:
                    at = self._apart(at)
        if self.sanitize:
            self.watch.races.close()

    def _spend(self, block: Block) -> None:
        self.steps += block.size
        if self.steps > self.plan.max_instructions:
            raise EkcError(
                f"kernel {self.plan.name} went over its budget of {self.plan.max_instructions} instructions "
                f"per thread, at PTX line {self._line(block)}: does it loop for ever? (max_instructions=...)"
            )

    def _line(self, block: Block) -> int:
        one = block.exit.instruction or (block.code[0] if block.code else None)
        return one.line if one else 0

    def _together(self, at: int) -> int | None:
        """All lanes at one place. Gives None when all are done, or the place where they part."""
        blocks, whole, lanes, warps = self.decoded.blocks, self.whole, self.every.size, len(self.starts)
        while True:
            block = blocks[at]
            self._spend(block)
            self.lane_runs[at] += lanes
            self.warp_runs[at] += warps
            whole[at](None)
            way = block.exit
            if way.kind == "jump":
                at = way.targets[0]
            elif way.kind == "exit":
                self._trapped(block, self.every)
                return None
            elif way.kind == "branch":
                taken = self._taken(block)
                count = np.count_nonzero(taken)
                if 0 < count < lanes:
                    self._split_warps(taken, None)
                    self.pc = np.where(taken, way.targets[0], way.targets[1]).astype(np.int32)
                    return at
                at = way.targets[0] if count else way.targets[1]
            elif way.kind == "barrier" and self.barriers.everyone(block):
                at = way.targets[0]
            else:
                self.pc = np.full(lanes, at, np.int32)
                self._leave(block, None)
                return at

    def _apart(self, at: int) -> int | None:
        """Lanes at several places: the lowest runs. Gives the place where all meet again, or None."""
        turn = 0
        while True:
            low = int(self.pc.min())
            if low >= WAITING:
                if low == DONE:
                    return None
                self.barriers.stuck()
                continue
            turn += 1
            if turn % _PATIENCE == 0:
                low = int(self.pc[self.pc < WAITING].max())
            mask = self.pc == low
            if mask.all():
                return low
            low, mask = self._ready(low, mask)
            block = self.decoded.blocks[low]
            self._spend(block)
            self.lane_runs[low] += int(np.count_nonzero(mask))
            self.warp_runs[low] += int(np.count_nonzero(np.logical_or.reduceat(mask, self.starts)))
            self._function(low)(mask)
            self._leave(block, mask)

    def _ready(self, low: int, mask: Any) -> tuple[int, Any]:
        """For an instruction of a whole warp (or warpgroup): those that miss lanes elsewhere wait, if others
        can run."""
        together = self.decoded.blocks[low].together
        if together == 1:
            return low, mask
        running = self.pc < WAITING
        starts = self.starts if together == WARP else self.products.starts
        missing = np.logical_or.reduceat(running & ~mask, starts)
        if not missing.any():
            return low, mask
        late = np.repeat(missing, np.diff(np.r_[starts, self.every.size]))
        ready = mask & ~late
        if ready.any():
            return low, ready
        others = running & ~mask & late
        places = self.pc[others]
        ahead = [int(p) for p in np.unique(places) if self.decoded.blocks[p].together == 1]
        if not ahead:
            return low, mask
        return ahead[0], self.pc == ahead[0]

    def _function(self, number: int) -> Callable[[Any], None]:
        if number not in self.masked:
            code = self.decoded.masked_code(number)
            bind.extend(self)
            self.access.grow()
            exec(code, self.names)
            self.masked[number] = self.names[f"m{number}"]
        return self.masked[number]

    def _leave(self, block: Block, mask: Any) -> None:
        """Move the active lanes to where they go next."""
        active = np.ones(self.every.size, np.bool_) if mask is None else mask
        way = block.exit
        if way.kind == "jump":
            self.pc[active] = way.targets[0]
        elif way.kind == "exit":
            self._trapped(block, np.flatnonzero(active))
            self.pc[active] = DONE
            self.barriers.release()
        elif way.kind == "branch":
            taken = self._taken(block) & active
            self._split_warps(taken, active)
            self.pc[active] = way.targets[1]
            self.pc[taken] = way.targets[0]
        elif way.kind == "exit_if":
            leaving = self._taken(block) & active
            self._split_warps(leaving, active)
            self._trapped(block, np.flatnonzero(leaving))
            self.pc[active] = way.targets[0]
            self.pc[leaving] = DONE
            self.barriers.release()
        elif way.kind == "switch":
            self._switch(block, active)
        else:
            self.barriers.arrive(block, active)

    def _trapped(self, block: Block, lanes: Any) -> None:
        """A finding for lanes that end by `trap`: a failed assertion, or code that must not be reached."""
        one = block.exit.instruction
        if one is not None and one.parts[0] == "trap" and lanes.size:
            message = f"{lanes.size} threads stop by trap"
            hint = "An assertion failed, or the kernel came where it must not."
            self.plan.findings.add("trap", one, message, hint, (self.geometry, int(lanes[0])))

    def _switch(self, block: Block, active: Any) -> None:
        assert block.exit.instruction is not None
        index = self.value(block.exit.instruction.operands[0])
        table = np.array(block.exit.targets, np.int32)
        self.pc[active] = table[np.minimum(index, len(table) - 1)][active]

    def value(self, operand: Any) -> Any:
        """A 32-bit operand of a closing instruction, as a row."""
        if hasattr(operand, "value"):
            return np.full(self.every.size, operand.value, np.int64)
        kind, slot = self.decoded.shelf.places[operand.name]
        row = self.names[f"P{slot}" if kind == "P" else f"{kind}{slot}u"]
        return ~row if getattr(operand, "negated", False) else row

    def _taken(self, block: Block) -> Any:
        assert block.exit.instruction is not None
        assert block.exit.instruction.guard is not None
        return self.value(block.exit.instruction.guard)

    def _split_warps(self, taken: Any, active: Any) -> None:
        """Count the warps that a branch splits."""
        other = ~taken if active is None else active & ~taken
        both = np.logical_or.reduceat(taken, self.starts) & np.logical_or.reduceat(other, self.starts)
        self.divergent += int(np.count_nonzero(both))
