"""All checks of products of warpgroups, behind one face."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ekc.emulator.decoding.shelf import Site
from ekc.emulator.memory import Index, Probe
from ekc.emulator.numbers.warpgroup import CHUNK, LANES, Descriptors, Operand
from ekc.emulator.ptx.program import Immediate
from ekc.emulator.sanitizer.factors import Factors
from ekc.emulator.sanitizer.flights import Flight, Flights
from ekc.emulator.sanitizer.proxies import Proxies
from ekc.emulator.sanitizer.sums import Sums

if TYPE_CHECKING:
    from ekc.emulator.batch import Batch


class Warpgroups:
    """Of one batch whose kernel has such products."""

    def __init__(self, batch: Batch) -> None:
        findings, geometry, products = batch.plan.findings, batch.geometry, batch.products
        self.batch = batch
        self.space = batch.spaces["shared"]
        self.factors = Factors(findings, geometry, products.place)
        size, shelf = self.space.bytes.size, batch.decoded.shelf
        waits = [one.operands[0] for one in shelf.text.code if one.opcode.startswith("wgmma.wait_group")]
        most = max((int(x.value) for x in waits if isinstance(x, Immediate)), default=0)
        group, slots = products.group, products.slots
        self.flights = Flights(findings, geometry, batch.every, group, slots, size, most)
        self.sums = Sums(findings, geometry, self.flights, shelf.hazards, products.place)
        writes = [site.code for site in shelf.sites if site.action in ("store", "async", "atom")]
        grain = min((int(code[1]) for code in writes), default=8)
        self.proxies = Proxies(findings, geometry, batch.every, size, grain)

    def issue(self, site: Site, rows: dict[str, Any], groups: Index, mask: Any) -> None:
        """A product begins; `rows` are what its threads must have in common."""
        self.factors.whole(site, groups, mask)
        for what, row in rows.items():
            self.factors.same(site, what, row, groups, mask)
        self.sums.issue(site, groups)
        self.flights.issue(site, groups)

    def factor(
        self,
        site: Site,
        what: str,
        operand: Operand,
        fields: Descriptors,
        addresses: Index,
        groups: Index,
        first: Index,
    ) -> None:
        """The product issued last reads a factor: the addresses of its chunks, a row for each group, and the
        first lane of each that takes part."""
        inside = self.space.allowed(addresses, CHUNK)
        self.factors.pattern(site, what, operand, fields, first)
        self.factors.outside(site, what, self.space, addresses, inside, first)
        chunks = (addresses + self.batch.shared_base[first][:, None]) // CHUNK
        if not inside.all():
            keep = inside.all(axis=1)
            groups, first, addresses, chunks = groups[keep], first[keep], addresses[keep], chunks[keep]
        shadow = self.batch.watch.written["shared"].shadow
        self.factors.unwritten(site, what, shadow, addresses, chunks, first)
        self.proxies.read(site, chunks, first)
        self.flights.read(groups, chunks)
        self._log(site, addresses, groups)

    def _log(self, site: Site, addresses: Index, groups: Index) -> None:
        """All threads of a group read all of a factor. Two of different warps stand for them: whoever else
        writes there is of another warp than one of the two."""
        number = np.arange(addresses.shape[1]) % (LANES // 2)
        place = self.batch.products.place[groups]
        halves = [np.where(place[:, k] < 0, place[:, :1], place[:, k]) for k in (number, number + LANES // 2)]
        for lanes in halves:
            act = lanes.ravel()
            probe = Probe(self.space, addresses.ravel(), self.batch.shared_base[act], act)
            if lanes is halves[0]:
                self.batch.copies.check(site, probe, 0, "reads")
            flight = Flight(self.flights, self.flights.serial)
            self.batch.watch.races.note(site, probe, 0, "read", flight=flight)

    def fence(self, site: Site, groups: Index, mask: Any) -> None:
        """`wgmma.fence`."""
        self.factors.whole(site, groups, mask)
        self.sums.fence(groups)

    def touched(self, site: Site, mask: Any) -> None:
        """A statement may touch the sums of a product in flight."""
        self.sums.touched(site, mask)

    def commit(self, site: Site, groups: Index, mask: Any) -> None:
        """`wgmma.commit_group`."""
        self.factors.whole(site, groups, mask)
        self.flights.commit(groups)

    def wait(self, site: Site, left: int, groups: Index, mask: Any) -> None:
        """`wgmma.wait_group`."""
        self.factors.whole(site, groups, mask)
        self.flights.wait(left, groups)
