"""`wgmma`: products of warpgroups, computed when they are issued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ekc.emulator.lane_state import LaneState
from ekc.emulator.numerics import wgmma
from ekc.emulator.numerics.wgmma import CHUNK_BYTES, ROWS, WgmmaOperand
from ekc.emulator.sanitizer.sanitizer import Sanitizer


@dataclass(frozen=True)
class WgmmaForm:
    """The variant of a `wgmma.mma_async`: factors, type of the sums and flags."""

    a: WgmmaOperand
    b: WgmmaOperand
    sum_type: str
    """"f32" or "s32"."""
    is_negated: bool
    is_saturating: bool

    @property
    def factor_bytes(self) -> int:
        """Bytes of both factors."""
        return CHUNK_BYTES * (self.a.chunk_count + self.b.chunk_count)


def make_wgmma_form(
    columns: int, element_type: str, is_negated: bool, is_transposed: tuple[bool, bool], is_saturating: bool
) -> WgmmaForm:
    """Make a variant from the arguments in decoded text."""
    a = WgmmaOperand(element_type, ROWS, is_transposed[0])
    b = WgmmaOperand(element_type, columns, is_transposed[1])
    return WgmmaForm(a, b, "s32" if element_type == "s8" else "f32", is_negated, is_saturating)


class WgmmaUnit:
    """The warpgroups of one batch and their products."""

    def __init__(self, batch: LaneState, sanitizer: Sanitizer | None) -> None:
        self.batch = batch
        self.checks = sanitizer.warpgroups if sanitizer is not None else None
        self.layout = batch.warpgroup_layout

    def multiply(
        self,
        site_number: int,
        form_arguments: tuple[Any, ...],
        a: Any,
        b: Any,
        accumulates: Any,
        d: tuple[Any, ...],
        mask: Any,
    ) -> None:
        """`wgmma.mma_async`: d += a b, or d = a b where `accumulates` is false."""
        form = make_wgmma_form(*form_arguments)
        groups, first = self._find_active_groups(mask)
        site, checks = self.batch.sites[site_number], self.checks
        if checks is not None:
            uniform_rows = {"the descriptor of a": a, "that of b": b, "scale-d": accumulates}
            checks.check_issue(site, uniform_rows, groups, mask)
        factors: list[Any] = []
        for what, operand, row in (("a", form.a, a), ("b", form.b, b)):
            fields = wgmma.decode_descriptors(np.broadcast_to(row, self.batch.all_lanes.shape)[first])
            if fields.base_offset.any():
                raise site.instruction.make_error("a descriptor with a base offset is not emulated")
            addresses = wgmma.compute_chunk_addresses(operand, fields)
            if checks is not None:
                checks.check_factor(site, what, operand, fields, addresses, groups, first)
            factors.append(self._read_factor(operand, addresses, first))
        self._count_requests(site_number, form, groups.size)
        product = wgmma.multiply_factors(factors[0], factors[1], form.is_negated)
        self._write_sums(form, product, accumulates, d, groups, mask)

    def _find_active_groups(self, mask: Any) -> tuple[Any, Any]:
        """The warpgroups with active lanes, and the first active lane of each."""
        if mask is None:
            return np.arange(len(self.layout.group_lanes)), self.layout.group_lanes[:, 0]
        groups, first = np.unique(self.layout.lane_groups[mask], return_index=True)
        return groups, np.flatnonzero(mask)[first]

    def _read_factor(self, operand: WgmmaOperand, addresses: Any, first: Any) -> Any:
        """A factor of every warpgroup; chunks outside of shared memory are zero."""
        space = self.batch.spaces["shared"]
        inside = space.is_in_bounds(addresses, CHUNK_BYTES)
        at = (addresses + self.batch.shared_base[first][:, None]) // CHUNK_BYTES
        # A chunk moves as one number of 16 bytes.
        chunks = space.bytes.view(np.complex128).take(at, mode="clip")
        if not inside.all():
            chunks[~inside] = 0
        return wgmma.unpack_factor(operand, chunks)

    def _write_sums(
        self, form: WgmmaForm, product: Any, accumulates: Any, d: tuple[Any, ...], groups: Any, mask: Any
    ) -> None:
        accumulates, kind = np.asarray(accumulates), (form.sum_type, form.is_saturating)
        if mask is None and self.layout.has_full_groups:
            words = wgmma.add_product(product, np.stack(d), accumulates, *kind)
            for row, values in zip(d, words, strict=True):
                row[...] = values
            return
        lanes = self.layout.group_lanes[groups].ravel()
        is_active = (lanes >= 0) & (True if mask is None else mask[lanes])
        lanes = lanes[is_active]
        sums = np.stack([row[lanes] for row in d])
        accumulates = np.broadcast_to(accumulates, self.batch.all_lanes.shape)[lanes]
        words = wgmma.add_product(product[:, is_active], sums, accumulates, *kind)
        for row, values in zip(d, words, strict=True):
            row[lanes] = values

    def _count_requests(self, site_number: int, form: WgmmaForm, groups: int) -> None:
        """Count a request of every warpgroup, with as many passes as its bytes fill: no banks conflict."""
        counts = self.batch.plan.counts
        counts.requests[site_number] += groups
        counts.bytes[site_number] += groups * form.factor_bytes
        counts.wavefronts[site_number] += groups * form.factor_bytes // 128

    def synchronize(self, site_number: int, mask: Any, pending_groups: int = 0) -> None:
        """`wgmma.fence`, `wgmma.commit_group` and `wgmma.wait_group`."""
        if self.checks is not None:
            groups, _ = self._find_active_groups(mask)
            self.checks.check_synchronization(self.batch.sites[site_number], groups, mask, pending_groups)

    def check_access(self, site_number: int, mask: Any) -> None:
        """An instruction may access the accumulators of a product in flight."""
        if self.checks is not None:
            self.checks.check_accumulators(self.batch.sites[site_number], mask)

    def fence_proxy(self, mask: Any) -> None:
        """`fence.proxy.async` of shared memory."""
        if self.checks is not None:
            self.checks.async_proxy.record_fence(mask)
