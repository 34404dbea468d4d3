"""Atomic operations: lanes that hit one place take their turns, in lane order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ekc.emulator.decoding.shelf import dtype_of
from ekc.emulator.memory import AddressProbe, gather, scatter
from ekc.emulator.numbers import halves
from ekc.emulator.numbers.rounding import flush
from ekc.errors import EkcError

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
    "exch": lambda old, new: new,
    "cas": lambda old, compare, new: np.where(old == compare, new, old),
    "inc": lambda old, top: np.where(old >= top, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, top: np.where((old == 0) | (old > top), top, old - old.dtype.type(1)),
}


def apply_atomic(
    probe: AddressProbe, offset: int, operation: str, type_name: str, values: tuple[Any, ...]
) -> Any:
    """Do it; gives the old values in lane order."""
    code, raw = dtype_of(type_name), f"u{np.dtype(dtype_of(type_name)).itemsize}"
    step = _find_operation(operation, type_name, probe.space.kind)
    place = probe.element_indices(int(raw[1]))
    order = np.argsort(place, kind="stable")
    turn = _rank_conflicts(place[order])
    if not turn.any():
        old = gather(probe, raw, offset).view(code)
        scatter(probe, raw, offset, np.asarray(step(old, *values)).view(raw))
        return old
    return _apply_in_turns(probe, offset, step, values, (code, raw), order, turn)


def _flushing_add(old: Any, new: Any) -> Any:
    """Subnormal float32 count as zeros in global memory; in shared they do not."""
    return flush(np.add(flush(old), flush(new)))


def _find_operation(operation: str, type_name: str, space: str) -> Callable[..., Any]:
    if operation == "add" and type_name == "f32" and space == "global":
        return _flushing_add
    if type_name in ("f16x2", "bf16x2", "bf16", "f16"):
        pairs = {"f16x2": halves.add16x2, "f16": halves.add16}
        if operation != "add" or type_name not in pairs:
            raise EkcError(f"atomic {operation} of .{type_name} is not emulated")
        return pairs[type_name]
    return _OPERATIONS[operation]


def _rank_conflicts(ordered: Any) -> Any:
    """How many lanes before each one want the same place; places are sorted."""
    count = np.arange(ordered.size)
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    return count - np.repeat(first, np.diff(np.r_[first, ordered.size]))


def _apply_in_turns(
    probe: AddressProbe,
    offset: int,
    operation: Callable[..., Any],
    values: tuple[Any, ...],
    codes: tuple[str, str],
    order: Any,
    turns: Any,
) -> Any:
    code, raw = codes
    old = np.empty(order.size, code)
    view = probe.space.views[raw].view(code)
    place = probe.element_indices(int(raw[1])) + offset // int(raw[1])
    by_turn = np.argsort(turns, kind="stable")
    ends = np.cumsum(np.bincount(turns))
    start = 0
    for end in ends:
        lanes = order[by_turn[start:end]]
        at = place[lanes]
        before = view[at]
        old[lanes] = before
        view[at] = operation(before, *(v[lanes] for v in values))
        start = end
    return old
