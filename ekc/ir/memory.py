"""Whether the tensors of an operator fit, asked before anything is allocated.

The line names what is needed, what there is and the largest extent that would do.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekc.errors import InvalidInput
from ekc.host import find_free_memory, format_bytes
from ekc.ir.extents import find_largest_extent
from ekc.ir.operator import Operator


def check_memory_fits(
    op: Operator, label: str, needed: Mapping[str, int], limit: int, limit_text: str, alternative: str = ""
) -> None:
    """Raises `InvalidInput` where bytes of tensors, by name, are together more than `limit`; `there` says
    whose limit it is, and `otherwise` what else would do."""
    if sum(needed.values()) <= limit:
        return
    largest = find_largest_extent(op, needed, limit)
    advice = f"use {largest[0]} <= {largest[1]}" if largest else "use smaller extents"
    raise InvalidInput(
        f"memory: {label} needs {format_byte_total(needed)}, {limit_text}; {advice}{alternative}"
    )


def check_host_memory(
    op: Operator, label: str, copy_counts: Mapping[str, float], alternative: str = ""
) -> None:
    """The same for the memory that this host has left, where each tensor is held some times its size."""
    needed = {name: int(often * op.tensors[name].bytes) for name, often in copy_counts.items()}
    left = find_free_memory()
    check_memory_fits(op, label, needed, left.bytes, f"this host has {left}", alternative)


def format_byte_total(sizes: Mapping[str, int]) -> str:
    """ "149 GiB (A 6.1 MiB, B 6.1 MiB, C 149 GiB)"."""
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items())
    return f"{format_bytes(sum(sizes.values()))} ({parts})"
