"""What may be wrong with a product of a warpgroup at its issue: who takes part, where its factors lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.decoding.shelf import Site
from ekc.emulator.geometry import Geometry
from ekc.emulator.memory import AddressSpace, Index
from ekc.emulator.numbers.warpgroup import (
    CHUNK_BYTES,
    DEPTH_BYTES,
    SWIZZLE_WIDTHS,
    WARPGROUP_SIZE,
    MatrixDescriptors,
    WgmmaOperand,
)
from ekc.emulator.sanitizer.sanitize import Findings

_PATTERN_LINES = 8
"""Lines of a swizzle pattern."""
_START_HINT = (
    "A start moves along a line by multiples of 32 bytes, as far as the instruction's part of it fits."
)


class FactorCheck:
    """The checks, each told for the first thread of the first warpgroup that shows it."""

    def __init__(self, findings: Findings, geometry: Geometry, group_lanes: Index) -> None:
        self.findings, self.geometry = findings, geometry
        self.group_lanes = group_lanes
        """The lane at each place of every warpgroup, -1 where the block has none."""

    def _report_finding(
        self, kind: str, site: Site, message: str, hint: str, lane: int, address: int | None = None
    ) -> None:
        self.findings.add(kind, site.instruction, message, hint, (self.geometry, lane), address)

    def check_full_group(self, site: Site, groups: Index, mask: Any) -> None:
        """A finding where only a part of a warpgroup runs what is for all of it."""
        there = self.group_lanes[groups] >= 0
        taking = there if mask is None else there & mask[self.group_lanes[groups]]
        bad = ~taking.all(axis=1)
        if not bad.any():
            return
        first = int(np.flatnonzero(bad)[0])
        count, lane = int(taking[first].sum()), int(self.group_lanes[groups[first]][taking[first]][0])
        message = f"only {count} threads of a warpgroup run it: undefined"
        hint = "All 128 threads of four warps must run it together: move it out of the condition."
        if not there[first].all():
            hint = "A warpgroup is four warps: launch blocks of a multiple of 128 threads."
        self._report_finding("warpgroup", site, message, hint, lane)

    def check_uniform(self, site: Site, quantity: str, row: Any, groups: Index, mask: Any) -> None:
        """A finding where threads of a warpgroup hold different values of what it has in common."""
        row = np.asarray(row)
        if row.ndim == 0:
            return
        lanes = self.group_lanes[groups]
        taking = (lanes >= 0) if mask is None else (lanes >= 0) & mask[lanes]
        values = row[lanes]
        own = values[np.arange(len(groups)), taking.argmax(axis=1)]
        bad = (taking & (values != own[:, None])).any(axis=1)
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            lane = int(lanes[first][(taking & (values != own[:, None]))[first]][0])
            message = f"threads of a warpgroup hold different values of {quantity}: undefined"
            hint = f"Work it out from what all {WARPGROUP_SIZE} threads share, such as threadIdx.x / {WARPGROUP_SIZE}."
            self._report_finding("warpgroup", site, message, hint, lane)

    def check_bounds(
        self,
        site: Site,
        factor_name: str,
        space: AddressSpace,
        addresses: Index,
        is_inside: Any,
        first_lanes: Index,
    ) -> None:
        """A finding where a factor lies outside of shared memory."""
        if is_inside.all():
            return
        group, chunk = (int(x[0]) for x in np.nonzero(~is_inside))
        where = int(addresses[group, chunk])
        message = f"product of shared memory {space.describe_nearest(where)}: {int((~is_inside).sum())} chunks of {factor_name}"
        hint = "Look at the start address of the matrix descriptor and at its two byte offsets."
        self._report_finding("out-of-bounds", site, message, hint, int(first_lanes[group]), where)

    def check_initialized(
        self, site: Site, factor_name: str, shadow: Any, addresses: Index, chunks: Index, first_lanes: Index
    ) -> None:
        """A finding where a factor was never written; `chunks` are its places, inside of shared memory."""
        words = shadow.view(np.uint64)
        both = words.take(2 * chunks, mode="clip") & words.take(2 * chunks + 1, mode="clip")
        bad = both != np.uint64(0x0101010101010101)
        if not bad.any():
            return
        group, chunk = (int(x[0]) for x in np.nonzero(bad))
        message = f"product of shared memory that nobody wrote: {int(bad.sum())} chunks of {factor_name}"
        hint = "Look for the store or the copy that should come first, and at the matrix descriptor."
        where = int(addresses[group, chunk])
        self._report_finding("uninitialised", site, message, hint, int(first_lanes[group]), where)

    def check_swizzle(
        self,
        site: Site,
        factor_name: str,
        operand: WgmmaOperand,
        descriptors: MatrixDescriptors,
        first_lanes: Index,
    ) -> None:
        """A finding where a swizzled factor does not lie as its pattern does: with base offset 0 the first of
        8 lines begins at a multiple of the pattern, and so does every repetition; an instruction stays within
        its lines."""
        width = np.array(SWIZZLE_WIDTHS)[descriptors.swizzle]
        size = _PATTERN_LINES * width
        along = (
            operand.lines * CHUNK_BYTES // operand.chunk_elements if operand.is_transposed else DEPTH_BYTES
        )
        off = descriptors.start % size
        strides = descriptors.stride % size != 0
        if operand.is_transposed:
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
                message = (
                    f"{factor_name} {does} off the pattern of its {width[group]}-byte swizzle, which repeats every "
                    f"{size[group]} bytes"
                )
                lane, where = int(first_lanes[group]), int(descriptors.start[group])
                self._report_finding("misaligned", site, message, hint.format(size=size[group]), lane, where)
                return
