"""Whether the tensors of an operator fit into memory, checked before anything is allocated.

The error names the bytes needed, the bytes available and the largest extent of an axis that would fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ekc.errors import InvalidInput
from ekc.host_memory import format_bytes, measure_free_memory
from ekc.ir import expr as ex
from ekc.ir.compute import Axis, Compute
from ekc.ir.graph import OperatorGraph

TensorDimension = tuple[str, int]
"""A tensor's name, and the number of one of its dimensions."""


def compute_largest_extent(op: OperatorGraph, sizes: Mapping[str, int], limit: int) -> tuple[str, int] | None:
    """The axis that has to shrink least, and the largest extent of it with which tensors of these `sizes`
    take at most `limit` bytes; None where no single axis is enough. Tensors shrink in proportion."""
    found = []
    for axis, dimensions in _group_dimensions_by_axis(op):
        times = {name: sum(tensor == name for tensor, _ in dimensions) for name in sizes}
        extent = _search_extent(axis.extent, sizes, times, limit)
        if extent:
            found.append((extent / axis.extent, axis.name, extent))
    _, name, extent = max(found, default=(0.0, "", 0))
    return (name, extent) if extent else None


def _search_extent(extent: int, sizes: Mapping[str, int], times: Mapping[str, int], limit: int) -> int:
    """The largest extent that fits; 0 where none does."""
    low, high = 0, extent
    while low < high:
        middle = (low + high + 1) // 2
        share = middle / extent
        if sum(size * share ** times[name] for name, size in sizes.items()) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def _group_dimensions_by_axis(op: OperatorGraph) -> Iterator[tuple[Axis, set[TensorDimension]]]:
    """Axes of the computes, the last first, each with the tensor dimensions that grow with it. Axes of two
    computes along the same dimension count as one."""
    reported = set[TensorDimension]()
    for compute in reversed(op.computes):
        for axis in compute.axes:
            reached = _find_linked_dimensions(op, compute, axis)
            if not reached & reported:
                reported |= reached
                yield axis, reached


def _find_linked_dimensions(op: OperatorGraph, compute: Compute, axis: Axis) -> set[TensorDimension]:
    reached, left = set[TensorDimension](), [(compute, axis)]
    while left:
        one, along = left.pop()
        new = set(_list_dimensions(one, along)) - reached
        reached |= new
        left += [
            (other, a) for other in op.computes for a in other.axes if new & set(_list_dimensions(other, a))
        ]
    return reached


def _list_dimensions(compute: Compute, axis: Axis) -> Iterator[TensorDimension]:
    """The tensor dimensions that a compute indexes by an axis."""
    for d, own in enumerate(compute.spatial_axes):
        if own == axis:
            yield compute.output.name, d
    extents = {a.name: a.extent for a in compute.axes}
    for load in ex.find_loads(compute.body):
        for d, index in enumerate(load.index):
            names = ex.find_variables(index)
            # In h + r, a row and a tap, the row is the axis along the dimension.
            if names and max(sorted(names), key=lambda name: extents[name]) == axis.name:
                yield load.tensor, d


def check_memory_fits(
    op: OperatorGraph,
    label: str,
    needed: Mapping[str, int],
    limit: int,
    limit_text: str,
    alternative: str = "",
) -> None:
    """Raises `InvalidInput` where bytes of tensors, by name, are together more than `limit`; `there` says
    whose limit it is, and `otherwise` what else would do."""
    if sum(needed.values()) <= limit:
        return
    largest = compute_largest_extent(op, needed, limit)
    advice = f"use {largest[0]} <= {largest[1]}" if largest else "use smaller extents"
    raise InvalidInput(
        f"memory: {label} needs {format_byte_total(needed)}, {limit_text}; {advice}{alternative}"
    )


def check_host_memory(
    op: OperatorGraph, label: str, copy_counts: Mapping[str, float], alternative: str = ""
) -> None:
    """The same for the memory that this host has left, where each tensor is held some times its size."""
    needed = {name: int(often * op.tensors[name].bytes) for name, often in copy_counts.items()}
    left = measure_free_memory()
    check_memory_fits(op, label, needed, left.bytes, f"this host has {left}", alternative)


def format_byte_total(sizes: Mapping[str, int]) -> str:
    """ "149 GiB (A 6.1 MiB, B 6.1 MiB, C 149 GiB)"."""
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items())
    return f"{format_bytes(sum(sizes.values()))} ({parts})"
