"""Binds decoded text to the arrays of one batch: everything a block's function refers to by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ekc.emulator.decoding.functions import list_arithmetic_functions

if TYPE_CHECKING:
    from ekc.emulator.batch import Batch

_BELOW_FLOAT32, _HALFWAY = np.uint64(0x1FFFFFFF), np.uint64(0x10000000)
_SMALLEST_NORMAL = 2.0**-126
_VIEW_CODES = {"H": ("u2", "i2", "f2"), "W": ("u4", "i4", "f4"), "D": ("u8", "i8", "f8")}


def allocate_rows(batch: Batch) -> dict[str, Any]:
    """Register rows with their views, and scratch rows."""
    lanes = batch.all_lanes.size
    names: dict[str, Any] = {}
    for kind, count in batch.decoded.slot_counts.items():
        if kind == "P":
            names |= {f"P{i}": row for i, row in enumerate(np.zeros((count, lanes), np.bool_))}
            continue
        unsigned, signed, floating = _VIEW_CODES[kind]
        table = np.zeros((count, lanes), unsigned)
        for i, row in enumerate(table):
            names[f"{kind}{i}u"] = row
            names[f"{kind}{i}i"] = row.view(signed)
            names[f"{kind}{i}{'h' if kind == 'H' else 'f'}"] = row.view(floating)
    for i, row in enumerate(np.empty((batch.decoded.context.scratch_row_count, lanes))):
        names[f"F{i}"] = row
    for i in range(len(batch.decoded.context.maybe_unset_registers)):
        names[f"I{i}"] = np.zeros(lanes, np.bool_)
    x, z = np.empty(lanes), np.empty(lanes, np.uint64)
    names |= {"X": x, "Y": np.empty(lanes), "XU": x.view(np.uint64), "Z": z, "zmin": z.min}
    return names | {"plain": _SingleRoundingCheck(x, z)}


class _SingleRoundingCheck:
    """Second look at a sum in float64 that may round twice: whether all of it is zero, or an ordinary
    number that is not half way between two float32."""

    def __init__(self, total: Any, scratch: Any) -> None:
        self.total, self.words, self.scratch = total, total.view(np.uint64), scratch
        self.magnitude, self.is_halfway = np.empty_like(total), np.empty(total.shape, np.bool_)

    def __call__(self) -> bool:
        np.bitwise_and(self.words, _BELOW_FLOAT32, out=self.scratch)
        if np.equal(self.scratch, _HALFWAY, out=self.is_halfway).any():
            return False
        np.abs(self.total, out=self.magnitude)
        # Zero turns into a large number, NaN stays and fails.
        np.copyto(self.magnitude, 1.0, where=np.equal(self.magnitude, 0.0, out=self.is_halfway))
        return bool(self.magnitude.min() >= _SMALLEST_NORMAL)


def build_namespace(batch: Batch) -> dict[str, Any]:
    """The whole namespace of a batch."""
    shelf, access, warps = batch.decoded.context, batch.memory_unit, batch.warp_unit
    found = (
        list_arithmetic_functions()
        | allocate_rows(batch)
        | batch.geometry.special_registers()
        | shelf.constants
    )
    found |= {
        "probe": access.probe, "load": access.load, "store": access.store, "atomic": access.atomic,
        "copies": batch.async_copies, "products": batch.wgmma_unit, "is_set": batch.check_initialized,
        "parameter": batch.plan.read_parameter, "clock": batch.read_clock, "EVERY": np.ones(batch.all_lanes.size, np.bool_),
        "shuffle": warps.shuffle, "vote": warps.vote, "redux": warps.redux, "match": warps.match,
        "tensor": warps.multiply_fragments, "ldmatrix": warps.load_matrices, "warp_epoch": batch.sync_warps,
    }  # fmt: skip
    _bind_address_rows(batch, found)
    return found


def extend_namespace(batch: Batch) -> None:
    """Bind what masked text has added."""
    batch.namespace.update(
        {k: v for k, v in batch.decoded.context.constants.items() if k not in batch.namespace}
    )
    _bind_address_rows(batch, batch.namespace)


def _bind_address_rows(batch: Batch, namespace: dict[str, Any]) -> None:
    for row, (code, what) in batch.decoded.context.address_rows.items():
        if row not in namespace:
            namespace[row] = np.full(batch.all_lanes.size, batch.plan.resolve_address(what), code)
