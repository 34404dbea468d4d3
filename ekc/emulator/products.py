"""`wgmma`: products of warpgroups, worked out when they are issued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ekc.emulator.numbers import warpgroup
from ekc.emulator.numbers.warpgroup import CHUNK, LANES, ROWS, Operand
from ekc.errors import EkcError

if TYPE_CHECKING:
    from ekc.emulator.batch import Batch
    from ekc.emulator.sanitizer.warpgroups import Warpgroups


@dataclass(frozen=True)
class Form:
    """What the text of one `wgmma.mma_async` says."""

    a: Operand
    b: Operand
    sums: str
    """"f32" or "s32"."""
    negated: bool
    satfinite: bool

    @property
    def bytes(self) -> int:
        """Of both factors."""
        return CHUNK * (self.a.chunks + self.b.chunks)


def form(columns: int, kind: str, negated: bool, transposed: tuple[bool, bool], satfinite: bool) -> Form:
    """As decoded text names one."""
    a, b = Operand(kind, ROWS, transposed[0]), Operand(kind, columns, transposed[1])
    return Form(a, b, "s32" if kind == "s8" else "f32", negated, satfinite)


class Products:
    """The warpgroups of one batch and their products."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        geometry = batch.geometry
        self.slots = -(-geometry.threads // LANES)
        """Warpgroups of a block, the last perhaps not whole."""
        self.group = geometry.block_numbers() * self.slots + geometry.thread_numbers() // LANES
        """Of every lane."""
        self.starts = np.flatnonzero(np.r_[True, self.group[1:] != self.group[:-1]])
        """The first lane of every group."""
        count = self.slots * len(geometry.ids)
        self.place = np.full((count, LANES), -1, np.int64)
        """The lane at each place of every group, -1 where the block has none."""
        self.place[self.group, geometry.thread_numbers() % LANES] = batch.every
        self.regular = geometry.threads % LANES == 0

    def multiply(
        self, number: int, form_of: tuple[Any, ...], a: Any, b: Any, keep: Any, d: tuple[Any, ...], mask: Any
    ) -> None:
        """`wgmma.mma_async`: d += a b, or d = a b where `keep` is false."""
        how = form(*form_of)
        groups, first = self._taking(mask)
        site, watch = self.batch.decoded.shelf.sites[number], self._watch()
        if watch is not None:
            watch.issue(site, {"the descriptor of a": a, "that of b": b, "scale-d": keep}, groups, mask)
        factors: list[Any] = []
        for what, operand, row in (("a", how.a, a), ("b", how.b, b)):
            fields = warpgroup.fields(np.broadcast_to(row, self.batch.every.shape)[first])
            self._refuse(number, fields)
            addresses = warpgroup.addresses(operand, fields)
            if watch is not None:
                watch.factor(site, what, operand, fields, addresses, groups, first)
            factors.append(self._read(operand, addresses, first))
        self._count(number, how, groups.size)
        product = warpgroup.multiplied(factors[0], factors[1], how.negated)
        self._write(how, product, keep, d, groups, mask)

    def _taking(self, mask: Any) -> tuple[Any, Any]:
        """The groups that take part, and the first lane of each that does."""
        if mask is None:
            return np.arange(len(self.place)), self.place[:, 0]
        groups, first = np.unique(self.group[mask], return_index=True)
        return groups, np.flatnonzero(mask)[first]

    def _watch(self) -> Warpgroups | None:
        return self.batch.watch.warpgroups if self.batch.sanitize else None

    def _refuse(self, number: int, fields: warpgroup.Descriptors) -> None:
        if fields.base.any():
            one = self.batch.decoded.shelf.sites[number].instruction
            raise EkcError(
                f"PTX line {one.line}: {one.text}: a descriptor with a base offset is not emulated"
            )

    def _read(self, operand: Operand, addresses: Any, first: Any) -> Any:
        """A factor of every group; what lies outside of shared memory is zero."""
        space = self.batch.spaces["shared"]
        inside = space.allowed(addresses, CHUNK)
        at = (addresses + self.batch.shared_base[first][:, None]) // CHUNK
        # A chunk moves as one number of 16 bytes.
        chunks = space.bytes.view(np.complex128).take(at, mode="clip")
        if not inside.all():
            chunks[~inside] = 0
        return warpgroup.factor(operand, chunks)

    def _write(self, how: Form, product: Any, keep: Any, d: tuple[Any, ...], groups: Any, mask: Any) -> None:
        keep = np.asarray(keep)
        if mask is None and self.regular:
            words = warpgroup.added(product, np.stack(d), keep, how.sums, how.satfinite)
            for row, values in zip(d, words, strict=True):
                row[...] = values
            return
        lanes = self.place[groups].ravel()
        there = (lanes >= 0) & (True if mask is None else mask[lanes])
        lanes = lanes[there]
        held = np.stack([row[lanes] for row in d])
        keep = np.broadcast_to(keep, self.batch.every.shape)[lanes]
        words = warpgroup.added(product[:, there], held, keep, how.sums, how.satfinite)
        for row, values in zip(d, words, strict=True):
            row[lanes] = values

    def _count(self, number: int, how: Form, groups: int) -> None:
        """A request of every group, and passes through the banks as many as the bytes fill: the layouts have
        no conflicts."""
        access = self.batch.access
        access.requests[number] += groups
        access.bytes[number] += groups * how.bytes
        access.wavefronts[number] += groups * how.bytes // 128

    def fence(self, number: int, mask: Any) -> None:
        """`wgmma.fence`."""
        if (watch := self._watch()) is not None:
            watch.fence(self.batch.decoded.shelf.sites[number], self._taking(mask)[0], mask)

    def commit(self, number: int, mask: Any) -> None:
        """`wgmma.commit_group`."""
        if (watch := self._watch()) is not None:
            watch.commit(self.batch.decoded.shelf.sites[number], self._taking(mask)[0], mask)

    def wait(self, number: int, left: int, mask: Any) -> None:
        """`wgmma.wait_group`."""
        if (watch := self._watch()) is not None:
            watch.wait(self.batch.decoded.shelf.sites[number], left, self._taking(mask)[0], mask)

    def touched(self, number: int, mask: Any) -> None:
        """A statement may touch the sums of a product in flight."""
        if (watch := self._watch()) is not None:
            watch.touched(self.batch.decoded.shelf.sites[number], mask)

    def proxy(self, mask: Any) -> None:
        """`fence.proxy.async` of shared memory."""
        if (watch := self._watch()) is not None:
            watch.proxies.fenced(mask)
