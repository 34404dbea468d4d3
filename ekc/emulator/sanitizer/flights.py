"""Products of warpgroups in flight: the shared memory that they read, from their issue to their wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.emulator.decoding.shelf import Site
from ekc.emulator.geometry import Geometry
from ekc.emulator.memory import Probe
from ekc.emulator.numbers.warpgroup import CHUNK
from ekc.emulator.ptx.program import Instruction
from ekc.emulator.sanitizer.sanitize import Findings

HINT = "Wait for the products with wgmma.wait_group, then cross a barrier, before writing there."


class Flights:
    """Products have numbers in the order of their issue; of a group they end in that order too."""

    def __init__(
        self, findings: Findings, geometry: Geometry, every: Any, group: Any, slots: int, size: int, most: int
    ) -> None:
        self.findings, self.geometry, self.every = findings, geometry, every
        self.group, self.slots = group, slots
        """The warpgroup of every lane; how many a block has."""
        count = slots * len(geometry.ids)
        self.block = geometry.block_numbers()
        self.serial = 0
        self.issued = np.zeros(count, np.int32)
        self.ended = np.zeros(count, np.int32)
        """The last product of each group that was issued, and that was waited for."""
        self.commits = np.zeros((count, most + 1), np.int32)
        """The last product of the latest commit groups, the youngest first."""
        self.reader = np.zeros((slots, size // CHUNK), np.int32)
        """For each group of a block: the last product that reads a chunk of shared memory."""
        self.lines: dict[int, Instruction] = {}
        """The statement of each product."""
        self.last: dict[Instruction, Any] = {}
        """The last product of each statement, by group."""

    def issue(self, site: Site, groups: Any) -> int:
        """A new product of these groups: its number."""
        self.serial += 1
        self.issued[groups] = self.serial
        self.lines[self.serial] = site.instruction
        self.last.setdefault(site.instruction, np.zeros_like(self.issued))[groups] = self.serial
        return self.serial

    def holding(self, one: Instruction) -> Any:
        """The lanes whose group has not waited for the last product of a statement."""
        return (self.last.get(one, self.ended) > self.ended)[self.group]

    def read(self, groups: Any, chunks: Any) -> None:
        """The product issued last reads these chunks: a row for each group."""
        self.reader[(groups % self.slots)[:, None], chunks] = self.serial

    def commit(self, groups: Any) -> None:
        """What these groups have issued becomes their next commit group."""
        self.commits[groups] = np.roll(self.commits[groups], 1, axis=1)
        self.commits[groups, 0] = self.issued[groups]

    def wait(self, left: int, groups: Any) -> None:
        """All but the last `left` commit groups end."""
        self.ended[groups] = np.maximum(self.ended[groups], self.commits[groups, left])

    def overwritten(self, site: Site, probe: Probe, offset: int, verb: str) -> None:
        """A finding if an access changes what a product in flight reads."""
        if not (self.issued > self.ended).any():
            return
        lanes = probe.lanes(self.every)
        chunk = (probe.address + probe.base + offset) // CHUNK
        for slot in range(self.slots):
            number = self.reader[slot, chunk]
            bad = number > self.ended[self.block[lanes] * self.slots + slot]
            if bad.any():
                first = int(np.flatnonzero(bad)[0])
                line = self.lines[int(number[first])].line
                message = f"{verb} what a product still in flight reads (PTX line {line})"
                place = (self.geometry, int(lanes[first]))
                address = int(probe.address[first]) + offset
                self.findings.add("async-product", site.instruction, message, HINT, place, address)
                return


@dataclass(frozen=True, slots=True)
class Flight:
    """One product, as the reads in the log of races know it."""

    flights: Flights
    number: int

    def aloft(self, lanes: Any) -> NDArray[np.bool_]:
        """Of these lanes, those whose warpgroup has not waited for it."""
        found: NDArray[np.bool_] = self.flights.ended[self.flights.group[lanes]] < self.number
        return found
