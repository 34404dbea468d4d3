"""Sums of products of warpgroups: registers that nobody may touch before the wait, nor without a fence."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.decoding.shelf import Site
from ekc.emulator.geometry import Geometry
from ekc.emulator.memory import Index
from ekc.emulator.ptx.program import Instruction
from ekc.emulator.ptx.sums import WgmmaHazards
from ekc.emulator.sanitizer.flights import ProductTracker
from ekc.emulator.sanitizer.sanitize import Findings

_WAIT_HINT = (
    "The sums are there after wgmma.commit_group and wgmma.wait_group. Where the CUDA text waits first, the "
    'compiler has moved this: behind the wait, tie the sums by asm volatile("" : "+f"(d[0]), ...).'
)
_FENCE_HINT = "Run wgmma.fence between what writes the sums and the first product that adds to them."


class AccumulatorCheck:
    """What the text of the kernel lets fear, held against what runs."""

    def __init__(
        self,
        findings: Findings,
        geometry: Geometry,
        tracker: ProductTracker,
        hazards: WgmmaHazards,
        group_lanes: Index,
    ) -> None:
        self.findings, self.geometry, self.tracker, self.hazards = findings, geometry, tracker, hazards
        self.group_lanes = group_lanes
        self.has_fenced = np.zeros(len(group_lanes), np.bool_)
        """Groups that ever ran a fence."""
        self.reported_products: set[Instruction] = set()
        """Products whose sums somebody touched: one statement is enough."""

    def record_fence(self, groups: Index) -> None:
        """`wgmma.fence`."""
        self.has_fenced[groups] = True

    def check_issue(self, site: Site, groups: Index) -> None:
        """A finding where a product begins whose sums somebody wrote since the last fence, or before any."""
        written = self.hazards.unfenced_writes.get(site.instruction)
        bare = ~self.has_fenced[groups]
        if bare.any():
            message = "is a product with no wgmma.fence before it"
            self._report_finding(site, message, _FENCE_HINT, int(self.group_lanes[groups[bare][0], 0]))
        elif written is not None:
            register, writer = written
            message = (
                f"its sums are in {register}, which PTX line {writer.line} wrote with no wgmma.fence since: "
                f"{writer.text}"
            )
            self._report_finding(site, message, _FENCE_HINT, int(self.group_lanes[groups[0], 0]))

    def check_access(self, site: Site, mask: Any) -> None:
        """A finding where a statement touches the sums of a product in flight."""
        touch = self.hazards.in_flight_accesses[site.instruction]
        for product in touch.products:
            bad = self.tracker.find_pending_lanes(product)
            bad = bad if mask is None else bad & mask
            if bad.any() and product not in self.reported_products:
                message = (
                    f"{touch.verb} {touch.register}, which holds sums of a product still in flight "
                    f"(PTX line {product.line})"
                )
                self._report_finding(site, message, _WAIT_HINT, int(np.flatnonzero(bad)[0]))
                self.reported_products.add(product)
                return

    def _report_finding(self, site: Site, message: str, hint: str, lane: int) -> None:
        self.findings.add("sums", site.instruction, message, hint, (self.geometry, lane))
