"""Asynchronous copies and products of warpgroups (`wgmma`) in flight, and the async proxy.

`PendingCopies`: accesses that touch shared memory before a copy (`cp.async`) has landed there.
`ProductTracker`: the shared memory that products read, from their issue to their wait.
`AsyncProxyCheck`: products see the writes of threads to shared memory only after `fence.proxy.async`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.decode.context import Site
from ekc.emulator.lane_state import LaneState
from ekc.emulator.memory import Access, Index, list_cell_contents
from ekc.emulator.numerics.wgmma import CHUNK_BYTES
from ekc.emulator.report import LaneFindings
from ekc.ptx.module import Instruction

COPY_HINT = "Wait for the group with cp.async.wait_group, then cross a barrier, before touching it."
IN_FLIGHT_HINT = "Wait for the products with wgmma.wait_group, then cross a barrier, before writing there."


@dataclass(eq=False, slots=True)
class InFlightCopy(Access):
    """One issued copy: its destination, its values, and the group of each lane (-1: not committed)."""

    values: tuple[Any, ...]
    lane_groups: Any

    def select_lanes(self, keep: Any) -> InFlightCopy:
        """The copy for some of its lanes."""
        probe, values = self.probe.select_lanes(0, keep), tuple(v[keep] for v in self.values)
        return InFlightCopy(self.site, probe, self.offset, values, self.lane_groups[keep])


class PendingCopies:
    """The copies in flight of one batch."""

    def __init__(self, findings: LaneFindings) -> None:
        self.findings = findings
        self.copies: list[InFlightCopy] = []

    def check_access(self, access: Access, verb: str, values: tuple[Any, ...] | None = None) -> None:
        """A finding if an access overlaps with a copy in flight. A store of the same values is allowed."""
        for copy in self.copies:
            if access.low >= copy.high or access.high <= copy.low:
                continue
            grain = min(access.site.element_bytes, copy.site.element_bytes)
            pending, mine = copy.list_cells(grain).ravel(), access.list_cells(grain)
            # The table covers at most the shared memory of a batch; sorting would take longer.
            bad = np.isin(mine, pending, kind="table")
            if bad.any() and values is not None:
                lands = list_cell_contents(copy.probe, copy.values, grain).ravel()
                order = np.argsort(pending, kind="stable")
                at = order[np.searchsorted(pending[order], mine).clip(max=order.size - 1)]
                bad &= lands[at] != list_cell_contents(access.probe, values, grain)
            if bad.any():
                self.findings.add_access(
                    "async-copy",
                    access,
                    bad.any(axis=1),
                    message=(
                        f"{verb} what a copy still in flight will write "
                        f"(PTX line {copy.site.instruction.line})"
                    ),
                    hint=COPY_HINT,
                )
                return


class ProductTracker:
    """Products in flight, numbered in the order of issue. Those of one warpgroup end in that order."""

    def __init__(self, batch: LaneState, max_pending_groups: int) -> None:
        self.findings, self.all_lanes, layout = batch.findings, batch.all_lanes, batch.warpgroup_layout
        self.lane_groups, self.groups_per_block = layout.lane_groups, layout.groups_per_block
        count = len(layout.group_lanes)
        self.lane_blocks = batch.geometry.block_numbers()
        self.last_product = 0
        self.last_issued = np.zeros(count, np.int32)
        self.last_completed = np.zeros(count, np.int32)
        """The last product of each warpgroup that was waited for. `last_issued`: the last that was issued."""
        self.committed_products = np.zeros((count, max_pending_groups + 1), np.int32)
        """The last product of the latest commit groups of each warpgroup, newest first."""
        chunk_count = batch.spaces["shared"].bytes.size // CHUNK_BYTES
        self.last_reader = np.zeros((self.groups_per_block, chunk_count), np.int32)
        """(warpgroup of the block, chunk) -> last product that reads this chunk of shared memory."""
        self.product_instructions: dict[int, Instruction] = {}
        """Product -> its instruction."""
        self.last_by_instruction: dict[Instruction, Any] = {}
        """Instruction -> its last product in each warpgroup."""

    def issue_product(self, site: Site, groups: Any) -> int:
        """Add a product of these warpgroups; returns its number."""
        self.last_product += 1
        self.last_issued[groups] = self.last_product
        self.product_instructions[self.last_product] = site.instruction
        last = self.last_by_instruction.setdefault(site.instruction, np.zeros_like(self.last_issued))
        last[groups] = self.last_product
        return self.last_product

    def find_pending_lanes(self, instruction: Instruction) -> Any:
        """Whether each lane's warpgroup has not waited for the last product of an instruction."""
        last = self.last_by_instruction.get(instruction, self.last_completed)
        return (last > self.last_completed)[self.lane_groups]

    def record_read(self, groups: Any, chunks: Any) -> None:
        """The product issued last reads these chunks, a row for each warpgroup."""
        self.last_reader[(groups % self.groups_per_block)[:, None], chunks] = self.last_product

    def commit_groups(self, groups: Any) -> None:
        """`wgmma.commit_group`: the products issued since the last commit become a group."""
        self.committed_products[groups] = np.roll(self.committed_products[groups], 1, axis=1)
        self.committed_products[groups, 0] = self.last_issued[groups]

    def wait_groups(self, pending_groups: int, groups: Any) -> None:
        """`wgmma.wait_group`: all but the newest `pending_groups` commit groups end."""
        committed = self.committed_products[groups, pending_groups]
        self.last_completed[groups] = np.maximum(self.last_completed[groups], committed)

    def check_overwrite(self, access: Access, verb: str) -> None:
        """A finding if an access changes memory that a product in flight reads."""
        if not (self.last_issued > self.last_completed).any():
            return
        lanes = access.probe.lane_numbers(self.all_lanes)
        chunk = (access.list_addresses() + access.probe.base) // CHUNK_BYTES
        for slot in range(self.groups_per_block):
            number = self.last_reader[slot, chunk]
            bad = number > self.last_completed[self.lane_blocks[lanes] * self.groups_per_block + slot]
            if bad.any():
                line = self.product_instructions[int(number[bad][0])].line
                self.findings.add_access(
                    "async-product",
                    access,
                    bad,
                    message=f"{verb} what a product still in flight reads (PTX line {line})",
                    hint=IN_FLIGHT_HINT,
                )
                return


@dataclass(frozen=True, slots=True)
class InFlightProduct:
    """A product, for the reads in the log of the race detector."""

    tracker: ProductTracker
    number: int

    def is_in_flight(self, lanes: Any) -> NDArray[np.bool_]:
        """Whether each of these lanes' warpgroups has not waited for the product."""
        completed = self.tracker.last_completed[self.tracker.lane_groups[lanes]]
        return np.asarray(completed < self.number)


_HINT = (
    "The writing thread runs fence.proxy.async when its data have landed (after cp.async.wait_group), before "
    "the barrier that the readers cross."
)


class AsyncProxyCheck:
    """For every cell of shared memory the lane and time of its last write, for every lane the time of its
    last fence and barrier. Time counts writes, fences and barriers."""

    def __init__(self, batch: LaneState, cell_bytes: int) -> None:
        self.findings, self.geometry, self.all_lanes = batch.findings, batch.geometry, batch.all_lanes
        self.cell_bytes = cell_bytes
        self.time = 1
        count, lanes = batch.spaces["shared"].bytes.size // cell_bytes, batch.geometry.lane_count
        self.last_writer = np.full(count, -1, np.int32)
        self.write_time = np.zeros(count, np.int32)
        self.fence_time, self.barrier_time = np.zeros(lanes, np.int32), np.zeros(lanes, np.int32)
        self.safe_time = np.zeros(lanes, np.int32)
        """Time of each lane's last fence before a barrier: earlier writes of it are visible to all."""

    def record_write(self, access: Access) -> None:
        """A write has landed."""
        self.time += 1
        places = access.list_cells(self.cell_bytes)
        self.last_writer[places] = access.probe.lane_numbers(self.all_lanes)[:, None]
        self.write_time[places] = self.time

    def record_fence(self, mask: Any) -> None:
        """Lanes run the fence."""
        self.time += 1
        self.fence_time[slice(None) if mask is None else mask] = self.time

    def record_barrier(self, lanes: Any) -> None:
        """Lanes (None: all) cross a barrier."""
        self.time += 1
        lanes = slice(None) if lanes is None else lanes
        self.safe_time[lanes] = self.fence_time[lanes]
        self.barrier_time[lanes] = self.time

    def check_read(self, site: Site, chunks: Index, first_lanes: Index) -> None:
        """A product reads chunks of shared memory, a row for each warpgroup. Findings name `first_lanes`."""
        each = CHUNK_BYTES // self.cell_bytes
        writer = self.last_writer.reshape(-1, each).take(chunks, axis=0, mode="clip")
        written = self.write_time.reshape(-1, each).take(chunks, axis=0, mode="clip")
        bad = (writer >= 0) & (self.safe_time[writer] < written)
        if not bad.any():
            return
        unfenced = bad & (self.fence_time[writer] < written)
        # Without any barrier since the write the two race, which the race detector reports.
        late = bad & (self.barrier_time[writer] > written)
        mistakes = (unfenced, "with no fence.proxy.async since"), (late, "whose fence came too late")
        for wrong, what in mistakes:
            if wrong.any():
                group, chunk, k = (int(x[0]) for x in np.nonzero(wrong))
                thread = int(writer[group, chunk, k]) % self.geometry.threads_per_block
                self.findings.add(
                    "proxy",
                    site.instruction,
                    message=f"reads shared memory that thread {thread} wrote, {what}",
                    hint=_HINT,
                    lane=int(first_lanes[group]),
                )
                return
