"""Whether the tensors of an operator fit, asked before anything is allocated.

The line names what is needed, what there is and the largest extent that would do.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekc.errors import InvalidInput
from ekc.host import format_bytes, host_memory
from ekc.ir.extents import largest_extent
from ekc.ir.operator import Operator


def check_fits(
    op: Operator, what: str, needed: Mapping[str, int], limit: int, there: str, otherwise: str = ""
) -> None:
    """Raises `InvalidInput` where bytes of tensors, by name, are together more than `limit`; `there` says
    whose limit it is, and `otherwise` what else would do."""
    if sum(needed.values()) <= limit:
        return
    largest = largest_extent(op, needed, limit)
    advice = f"use {largest[0]} <= {largest[1]}" if largest else "use smaller extents"
    raise InvalidInput(f"memory: {what} needs {format_sum(needed)}, {there}; {advice}{otherwise}")


def check_host(op: Operator, what: str, times: Mapping[str, float], otherwise: str = "") -> None:
    """The same for the memory that this host has left, where each tensor is held some times its size."""
    needed = {name: int(often * op.tensors[name].bytes) for name, often in times.items()}
    left = host_memory()
    check_fits(op, what, needed, left.bytes, f"this host has {left}", otherwise)


def format_sum(sizes: Mapping[str, int]) -> str:
    """ "149 GiB (A 6.1 MiB, B 6.1 MiB, C 149 GiB)"."""
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items())
    return f"{format_bytes(sum(sizes.values()))} ({parts})"
