"""Sums of products of warpgroups: registers that nobody may touch before the wait, nor without a fence."""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.emulator.decoding.shelf import Site
from ekc.emulator.geometry import Geometry
from ekc.emulator.memory import Index
from ekc.emulator.ptx.program import Instruction
from ekc.emulator.ptx.sums import Hazards
from ekc.emulator.sanitizer.flights import Flights
from ekc.emulator.sanitizer.sanitize import Findings

_WAIT = (
    "The sums are there after wgmma.commit_group and wgmma.wait_group. Where the CUDA text waits first, the "
    'compiler has moved this: behind the wait, tie the sums by asm volatile("" : "+f"(d[0]), ...).'
)
_FENCE = "Run wgmma.fence between what writes the sums and the first product that adds to them."


class Sums:
    """What the text of the kernel lets fear, held against what runs."""

    def __init__(
        self, findings: Findings, geometry: Geometry, flights: Flights, hazards: Hazards, place: Index
    ) -> None:
        self.findings, self.geometry, self.flights, self.hazards = findings, geometry, flights, hazards
        self.place = place
        self.fenced = np.zeros(len(place), np.bool_)
        """Groups that ever ran a fence."""
        self.told: set[Instruction] = set()
        """Products whose sums somebody touched: one statement is enough."""

    def fence(self, groups: Index) -> None:
        """`wgmma.fence`."""
        self.fenced[groups] = True

    def issue(self, site: Site, groups: Index) -> None:
        """A finding where a product begins whose sums somebody wrote since the last fence, or before any."""
        written = self.hazards.unfenced.get(site.instruction)
        bare = ~self.fenced[groups]
        if bare.any():
            message = "is a product with no wgmma.fence before it"
            self._tell(site, message, _FENCE, int(self.place[groups[bare][0], 0]))
        elif written is not None:
            register, writer = written
            message = (
                f"its sums are in {register}, which PTX line {writer.line} wrote with no wgmma.fence since: "
                f"{writer.text}"
            )
            self._tell(site, message, _FENCE, int(self.place[groups[0], 0]))

    def touched(self, site: Site, mask: Any) -> None:
        """A finding where a statement touches the sums of a product in flight."""
        touch = self.hazards.touches[site.instruction]
        for product in touch.products:
            bad = self.flights.holding(product)
            bad = bad if mask is None else bad & mask
            if bad.any() and product not in self.told:
                message = (
                    f"{touch.verb} {touch.register}, which holds sums of a product still in flight "
                    f"(PTX line {product.line})"
                )
                self._tell(site, message, _WAIT, int(np.flatnonzero(bad)[0]))
                self.told.add(product)
                return

    def _tell(self, site: Site, message: str, hint: str, lane: int) -> None:
        self.findings.add("sums", site.instruction, message, hint, (self.geometry, lane))
