"""Binds decoded text to the arrays of one batch: everything a block's function refers to by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ekc.emulator.decoding.functions import arithmetic

if TYPE_CHECKING:
    from ekc.emulator.batch import Batch

_BELOW, _HALF = np.uint64(0x1FFFFFFF), np.uint64(0x10000000)
_NORMAL = 2.0**-126
_CODES = {"H": ("u2", "i2", "f2"), "W": ("u4", "i4", "f4"), "D": ("u8", "i8", "f8")}


def rows(batch: Batch) -> dict[str, Any]:
    """Register rows with their views, and scratch rows."""
    lanes = batch.every.size
    names: dict[str, Any] = {}
    for kind, count in batch.decoded.slots.items():
        if kind == "P":
            names |= {f"P{i}": row for i, row in enumerate(np.zeros((count, lanes), np.bool_))}
            continue
        unsigned, signed, floating = _CODES[kind]
        table = np.zeros((count, lanes), unsigned)
        for i, row in enumerate(table):
            names[f"{kind}{i}u"] = row
            names[f"{kind}{i}i"] = row.view(signed)
            names[f"{kind}{i}{'h' if kind == 'H' else 'f'}"] = row.view(floating)
    for i, row in enumerate(np.empty((batch.decoded.shelf.scratch, lanes))):
        names[f"F{i}"] = row
    for i in range(len(batch.decoded.shelf.early)):
        names[f"I{i}"] = np.zeros(lanes, np.bool_)
    x, z = np.empty(lanes), np.empty(lanes, np.uint64)
    names |= {"X": x, "Y": np.empty(lanes), "XU": x.view(np.uint64), "Z": z, "zmin": z.min}
    return names | {"plain": _Plain(x, z)}


class _Plain:
    """Second look at a sum in float64 that may round twice: whether all of it is zero, or an ordinary
    number that is not half way between two float32."""

    def __init__(self, total: Any, scratch: Any) -> None:
        self.total, self.words, self.scratch = total, total.view(np.uint64), scratch
        self.size, self.flag = np.empty_like(total), np.empty(total.shape, np.bool_)

    def __call__(self) -> bool:
        np.bitwise_and(self.words, _BELOW, out=self.scratch)
        if np.equal(self.scratch, _HALF, out=self.flag).any():
            return False
        np.abs(self.total, out=self.size)
        # Zero turns into a large number, NaN stays and fails.
        np.copyto(self.size, 1.0, where=np.equal(self.size, 0.0, out=self.flag))
        return bool(self.size.min() >= _NORMAL)


def names(batch: Batch) -> dict[str, Any]:
    """The whole namespace of a batch."""
    shelf, access, warps = batch.decoded.shelf, batch.access, batch.warps
    found = arithmetic() | rows(batch) | batch.geometry.specials() | shelf.constants
    found |= {
        "probe": access.probe, "load": access.load, "store": access.store, "atomic": access.atomic,
        "copies": batch.copies, "products": batch.products, "is_set": batch.is_set,
        "parameter": batch.plan.parameter, "clock": batch.clock, "EVERY": np.ones(batch.every.size, np.bool_),
        "shuffle": warps.shuffle, "vote": warps.vote, "redux": warps.redux, "match": warps.match,
        "tensor": warps.tensor, "ldmatrix": warps.ldmatrix, "warp_epoch": batch.warp_epoch,
    }  # fmt: skip
    _fill(batch, found)
    return found


def extend(batch: Batch) -> None:
    """Bind what masked text has added."""
    batch.names.update({k: v for k, v in batch.decoded.shelf.constants.items() if k not in batch.names})
    _fill(batch, batch.names)


def _fill(batch: Batch, found: dict[str, Any]) -> None:
    for row, (code, what) in batch.decoded.shelf.full.items():
        if row not in found:
            found[row] = np.full(batch.every.size, batch.plan.address(what), code)
