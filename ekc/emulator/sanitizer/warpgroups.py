"""All checks of products of warpgroups, behind one face."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ekc.emulator.decoding.shelf import Site
from ekc.emulator.memory import AddressProbe, Index
from ekc.emulator.numbers.warpgroup import CHUNK_BYTES, WARPGROUP_SIZE, MatrixDescriptors, WgmmaOperand
from ekc.emulator.ptx.program import Immediate
from ekc.emulator.sanitizer.factors import FactorCheck
from ekc.emulator.sanitizer.flights import InFlightProduct, ProductTracker
from ekc.emulator.sanitizer.proxies import AsyncProxyCheck
from ekc.emulator.sanitizer.sums import AccumulatorCheck

if TYPE_CHECKING:
    from ekc.emulator.batch import Batch


class WarpgroupCheck:
    """Of one batch whose kernel has such products."""

    def __init__(self, batch: Batch) -> None:
        findings, geometry, products = batch.plan.findings, batch.geometry, batch.wgmma_unit
        self.batch = batch
        self.space = batch.spaces["shared"]
        self.factor_check = FactorCheck(findings, geometry, products.group_lanes)
        size, shelf = self.space.bytes.size, batch.decoded.context
        waits = [one.operands[0] for one in shelf.kernel.code if one.opcode.startswith("wgmma.wait_group")]
        most = max((int(x.value) for x in waits if isinstance(x, Immediate)), default=0)
        group, slots = products.lane_groups, products.groups_per_block
        self.tracker = ProductTracker(findings, geometry, batch.all_lanes, group, slots, size, most)
        self.accumulators = AccumulatorCheck(
            findings, geometry, self.tracker, shelf.hazards, products.group_lanes
        )
        writes = [site.dtype_code for site in shelf.sites if site.action in ("store", "async", "atom")]
        grain = min((int(code[1]) for code in writes), default=8)
        self.async_proxy = AsyncProxyCheck(findings, geometry, batch.all_lanes, size, grain)

    def check_issue(self, site: Site, uniform_rows: dict[str, Any], groups: Index, mask: Any) -> None:
        """A product begins; `rows` are what its threads must have in common."""
        self.factor_check.check_full_group(site, groups, mask)
        for what, row in uniform_rows.items():
            self.factor_check.check_uniform(site, what, row, groups, mask)
        self.accumulators.check_issue(site, groups)
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
        """The product issued last reads a factor: the addresses of its chunks, a row for each group, and the
        first lane of each that takes part."""
        inside = self.space.is_in_bounds(addresses, CHUNK_BYTES)
        self.factor_check.check_swizzle(site, factor_name, operand, descriptors, first_lanes)
        self.factor_check.check_bounds(site, factor_name, self.space, addresses, inside, first_lanes)
        chunks = (addresses + self.batch.shared_base[first_lanes][:, None]) // CHUNK_BYTES
        if not inside.all():
            keep = inside.all(axis=1)
            groups, first_lanes, addresses, chunks = (
                groups[keep],
                first_lanes[keep],
                addresses[keep],
                chunks[keep],
            )
        shadow = self.batch.sanitizer.written_bytes["shared"].shadow
        self.factor_check.check_initialized(site, factor_name, shadow, addresses, chunks, first_lanes)
        self.async_proxy.check_read(site, chunks, first_lanes)
        self.tracker.record_read(groups, chunks)
        self._log_reads(site, addresses, groups)

    def _log_reads(self, site: Site, addresses: Index, groups: Index) -> None:
        """All threads of a group read all of a factor. Two of different warps stand for them: whoever else
        writes there is of another warp than one of the two."""
        number = np.arange(addresses.shape[1]) % (WARPGROUP_SIZE // 2)
        place = self.batch.wgmma_unit.group_lanes[groups]
        halves = [
            np.where(place[:, k] < 0, place[:, :1], place[:, k])
            for k in (number, number + WARPGROUP_SIZE // 2)
        ]
        for lanes in halves:
            act = lanes.ravel()
            probe = AddressProbe(self.space, addresses.ravel(), self.batch.shared_base[act], act)
            if lanes is halves[0]:
                self.batch.async_copies.check_access(site, probe, 0, "reads")
            flight = InFlightProduct(self.tracker, self.tracker.last_product)
            self.batch.sanitizer.races.log_access(site, probe, 0, "read", product=flight)

    def check_fence(self, site: Site, groups: Index, mask: Any) -> None:
        """`wgmma.fence`."""
        self.factor_check.check_full_group(site, groups, mask)
        self.accumulators.record_fence(groups)

    def check_access(self, site: Site, mask: Any) -> None:
        """A statement may touch the sums of a product in flight."""
        self.accumulators.check_access(site, mask)

    def check_commit(self, site: Site, groups: Index, mask: Any) -> None:
        """`wgmma.commit_group`."""
        self.factor_check.check_full_group(site, groups, mask)
        self.tracker.commit_groups(groups)

    def check_wait(self, site: Site, pending_groups: int, groups: Index, mask: Any) -> None:
        """`wgmma.wait_group`."""
        self.factor_check.check_full_group(site, groups, mask)
        self.tracker.wait_groups(pending_groups, groups)
