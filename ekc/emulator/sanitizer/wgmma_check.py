"""Checks of `wgmma`, the products of warpgroups.

At the issue of a product: the threads that take part, the factors in shared memory, and writes to the
accumulators without a fence. While it runs: accesses to the accumulators before the wait.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.decode.context import Site
from ekc.emulator.lane_state import LaneState
from ekc.emulator.memory import Access, AddressProbe, Index
from ekc.emulator.numerics.wgmma import (
    CHUNK_BYTES,
    DEPTH_BYTES,
    SWIZZLE_WIDTHS,
    MatrixDescriptors,
    WgmmaOperand,
)
from ekc.emulator.sanitizer.in_flight import AsyncProxyCheck, InFlightProduct, PendingCopies, ProductTracker
from ekc.emulator.sanitizer.racecheck import RaceDetector
from ekc.ptx.cfg import WARPGROUP_SIZE
from ekc.ptx.module import Instruction
from ekc.ptx.wgmma_hazards import WgmmaHazards, count_pending_groups
from ekc.tables import count_nouns

_PATTERN_LINES = 8
"""Lines of a swizzle pattern."""
_START_HINT = (
    "A start moves along a line by multiples of 32 bytes, as far as the instruction's part of it fits."
)
_WAIT_HINT = (
    "The sums are there after wgmma.commit_group and wgmma.wait_group. Where the CUDA text waits first, the "
    'compiler has moved this: behind the wait, tie the sums by asm volatile("" : "+f"(d[0]), ...).'
)
_FENCE_HINT = "Run wgmma.fence between what writes the sums and the first product that adds to them."


class WarpgroupCheck:
    """The checks of one batch whose kernel has products of warpgroups."""

    def __init__(
        self, batch: LaneState, races: RaceDetector, shared_shadow: Any, pending_copies: PendingCopies
    ) -> None:
        self.batch, self.races, self.pending_copies = batch, races, pending_copies
        self.shared_shadow = shared_shadow
        """Bytes of shared memory that were written."""
        self.space, self.findings = batch.spaces["shared"], batch.findings
        self.group_lanes = batch.warpgroup_layout.group_lanes
        """The lane at each place of every warpgroup, -1 where the block has none."""
        context = batch.decoded.context
        waits = (one for one in context.kernel.code if one.opcode.startswith("wgmma.wait_group"))
        self.tracker = ProductTracker(batch, max(map(count_pending_groups, waits), default=0))
        self.hazards: WgmmaHazards = context.hazards
        self.has_fenced = np.zeros(len(self.group_lanes), np.bool_)
        """Whether each warpgroup ever ran a fence."""
        self.reported_products: set[Instruction] = set()
        """Products with a finding: one access of each to its accumulators is reported."""
        writes = [site.dtype_code for site in context.sites if site.action in ("store", "async", "atom")]
        grain = min((int(code[1]) for code in writes), default=8)
        self.async_proxy = AsyncProxyCheck(batch, grain)

    def check_issue(self, site: Site, uniform_rows: dict[str, Any], groups: Index, mask: Any) -> None:
        """A product is issued; `uniform_rows`: operands that must be the same in all its threads."""
        self._check_full_group(site, groups, mask)
        for what, row in uniform_rows.items():
            self._check_uniform(site, what, row, groups, mask)
        self._check_sums(site, groups)
        self.tracker.issue_product(site, groups)

    def check_factor(
        self,
        site: Site,
        factor_name: str,
        operand: WgmmaOperand,
        descriptors: MatrixDescriptors,
        addresses: Index,
        groups: Index,
        first_lanes: Index,
    ) -> None:
        """The product issued last reads a factor.

        `addresses`: a row of chunk addresses for each warpgroup; `first_lanes`: its first active lane."""
        inside = self.space.is_in_bounds(addresses, CHUNK_BYTES)
        self._check_swizzle(site, factor_name, operand, descriptors, first_lanes)
        self._check_bounds(site, factor_name, addresses, inside, first_lanes)
        chunks = (addresses + self.batch.shared_base[first_lanes][:, None]) // CHUNK_BYTES
        if not inside.all():
            keep = inside.all(axis=1)
            groups, first_lanes = groups[keep], first_lanes[keep]
            addresses, chunks = addresses[keep], chunks[keep]
        self._check_initialized(site, factor_name, addresses, chunks, first_lanes)
        self.async_proxy.check_read(site, chunks, first_lanes)
        self.tracker.record_read(groups, chunks)
        self._log_reads(site, addresses, groups)

    def _log_reads(self, site: Site, addresses: Index, groups: Index) -> None:
        """Log a factor as read. All threads of a group read all of it; two lanes of different warps are
        logged.

        That is enough: any writer belongs to another warp than at least one of the two."""
        number = np.arange(addresses.shape[1]) % (WARPGROUP_SIZE // 2)
        place = self.group_lanes[groups]
        for first in (0, WARPGROUP_SIZE // 2):
            lanes = place[:, number + first]
            act = np.where(lanes < 0, place[:, :1], lanes).ravel()
            probe = AddressProbe(self.space, addresses.ravel(), self.batch.shared_base[act], act)
            access = Access(site, probe, 0)
            if first == 0:
                self.pending_copies.check_access(access, "reads")
            flight = InFlightProduct(self.tracker, self.tracker.last_product)
            self.races.log_access(access, "read", product=flight)

    def check_synchronization(self, site: Site, groups: Index, mask: Any, pending_groups: int) -> None:
        """`wgmma.fence`, `wgmma.commit_group` or `wgmma.wait_group`."""
        self._check_full_group(site, groups, mask)
        operation = site.instruction.parts[1]
        if operation == "fence":
            self.has_fenced[groups] = True
        elif operation == "commit_group":
            self.tracker.commit_groups(groups)
        else:
            self.tracker.wait_groups(pending_groups, groups)

    # -- threads and factors ----------------------------------------------------------------------
    def _find_active_lanes(self, groups: Index, mask: Any) -> Any:
        """Whether there is a lane that runs at each place of some warpgroups."""
        lanes = self.group_lanes[groups]
        return (lanes >= 0) & (True if mask is None else mask[lanes])

    def _check_full_group(self, site: Site, groups: Index, mask: Any) -> None:
        """A finding where only some threads of a warpgroup run an instruction that needs all of them."""
        exists, is_active = self.group_lanes[groups] >= 0, self._find_active_lanes(groups, mask)
        bad = ~is_active.all(axis=1)
        if not bad.any():
            return
        first = int(np.flatnonzero(bad)[0])
        count, lane = int(is_active[first].sum()), int(self.group_lanes[groups[first]][is_active[first]][0])
        message = f"only {count} threads of a warpgroup run it: undefined"
        hint = "All 128 threads of four warps must run it together: move it out of the condition."
        if not exists[first].all():
            hint = "A warpgroup is four warps: launch blocks of a multiple of 128 threads."
        self.findings.add("warpgroup", site.instruction, message, hint, lane)

    def _check_uniform(self, site: Site, quantity: str, row: Any, groups: Index, mask: Any) -> None:
        """A finding where threads of a warpgroup have different values of a quantity that must be uniform."""
        row = np.asarray(row)
        if row.ndim == 0:
            return
        lanes, is_active = self.group_lanes[groups], self._find_active_lanes(groups, mask)
        values = row[lanes]
        own = values[np.arange(len(groups)), is_active.argmax(axis=1)]
        bad = is_active & (values != own[:, None])
        if bad.any():
            shared = f"threadIdx.x / {WARPGROUP_SIZE}"
            self.findings.add(
                "warpgroup",
                site.instruction,
                message=f"threads of a warpgroup hold different values of {quantity}: undefined",
                hint=f"Compute it from values that all {WARPGROUP_SIZE} threads share, such as {shared}.",
                lane=int(lanes[bad][0]),
            )

    def _check_bounds(self, site: Site, factor: str, addresses: Index, is_inside: Any, lanes: Index) -> None:
        """A finding where a factor is outside of shared memory."""
        if is_inside.all():
            return
        group, chunk = (int(x[0]) for x in np.nonzero(~is_inside))
        where = int(addresses[group, chunk])
        place, count = self.space.describe_nearest(where), int((~is_inside).sum())
        self.findings.add(
            "out-of-bounds",
            site.instruction,
            message=f"product of shared memory {place}: {count} chunks of {factor}",
            hint="Look at the start address of the matrix descriptor and at its two byte offsets.",
            lane=int(lanes[group]),
            address=where,
        )

    def _check_initialized(
        self, site: Site, factor_name: str, addresses: Index, chunks: Index, first_lanes: Index
    ) -> None:
        """A finding where a factor was never written; `chunks`: its chunks, all inside of shared memory."""
        words = self.shared_shadow.view(np.uint64)
        both = words.take(2 * chunks, mode="clip") & words.take(2 * chunks + 1, mode="clip")
        bad = both != np.uint64(0x0101010101010101)
        if not bad.any():
            return
        group, chunk = (int(x[0]) for x in np.nonzero(bad))
        count = count_nouns(int(bad.sum()), "chunk")
        self.findings.add(
            "uninitialised",
            site.instruction,
            message=f"product of shared memory that was never written: {count} of {factor_name}",
            hint="Look for the store or the copy that should come first, and at the matrix descriptor.",
            lane=int(first_lanes[group]),
            address=int(addresses[group, chunk]),
        )

    def _check_swizzle(
        self,
        site: Site,
        factor_name: str,
        operand: WgmmaOperand,
        descriptors: MatrixDescriptors,
        first_lanes: Index,
    ) -> None:
        """A finding where the layout of a swizzled factor does not fit its pattern.

        With base offset 0, the first of 8 lines and every repetition begin at a multiple of the pattern, and
        an instruction stays within its lines."""
        width = np.array(SWIZZLE_WIDTHS)[descriptors.swizzle]
        size = _PATTERN_LINES * width
        along = DEPTH_BYTES
        off = descriptors.start % size
        strides = descriptors.stride % size != 0
        if operand.is_transposed:
            along = operand.lines * CHUNK_BYTES // operand.chunk_elements
            strides |= (descriptors.leading % size != 0) & (along > width)
        wrongs = (
            (off >= width, "starts", "Declare its array __align__({size})."),
            (off + np.minimum(width, along) > width, "goes over the end of its line,", _START_HINT),
            (strides, "has strides", "Its byte offsets in the descriptor must be multiples of {size}."),
        )
        for wrong, does, hint in wrongs:
            bad = wrong & (width > CHUNK_BYTES)
            if bad.any():
                group = int(np.flatnonzero(bad)[0])
                self.findings.add(
                    "misaligned",
                    site.instruction,
                    message=(
                        f"{factor_name} {does} off the pattern of its {width[group]}-byte swizzle, "
                        f"which repeats every {size[group]} bytes"
                    ),
                    hint=hint.format(size=size[group]),
                    lane=int(first_lanes[group]),
                    address=int(descriptors.start[group]),
                )
                return

    # -- accumulators -----------------------------------------------------------------------------
    def _check_sums(self, site: Site, groups: Index) -> None:
        """A finding where a product's accumulators were written since the last fence, or no fence ran."""
        written = self.hazards.unfenced_writes.get(site.instruction)
        bare = groups[~self.has_fenced[groups]]
        if bare.size:
            message = "is a product with no wgmma.fence before it"
        elif written is not None:
            register, writer = written
            message = (
                f"its sums are in {register}, which PTX line {writer.line} wrote with no wgmma.fence since: "
                f"{writer.text}"
            )
        else:
            return
        lane = int(self.group_lanes[(bare if bare.size else groups)[0], 0])
        self.findings.add("sums", site.instruction, message, _FENCE_HINT, lane)

    def check_accumulators(self, site: Site, mask: Any) -> None:
        """A finding where an instruction accesses the accumulators of a product in flight."""
        touch = self.hazards.in_flight_accesses[site.instruction]
        for product in touch.products:
            bad = self.tracker.find_pending_lanes(product)
            bad = bad if mask is None else bad & mask
            if bad.any() and product not in self.reported_products:
                self.findings.add_first(
                    "sums",
                    site.instruction,
                    bad,
                    message=(
                        f"{touch.verb} {touch.register}, which holds sums of a product still in flight "
                        f"(PTX line {product.line})"
                    ),
                    hint=_WAIT_HINT,
                )
                self.reported_products.add(product)
                return
