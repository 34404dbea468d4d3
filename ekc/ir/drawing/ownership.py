"""The thread that writes each element of the output, from the addresses of the launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.ir.affine import evaluate_form, split_digits
from ekc.ir.lowering import nodes as tree
from ekc.ir.lowering.buffers import TensorAccess
from ekc.ir.lowering.nodes import LaunchTree
from ekc.ir.program import Loop

MOST_POINTS = 1 << 18
"""Most writes that are evaluated; of larger tiles, the first iterations of loops."""


@dataclass(frozen=True, eq=False)
class BlockTile:
    """The elements that one block writes."""

    index: NDArray[np.int64]
    """Coordinates of each element in the output, (elements, dimensions)."""
    thread: NDArray[np.int64]
    """Linear number of the thread that writes it, (elements,)."""
    shortened: tuple[str, ...]
    """Loops of which only the first iterations are in it; empty where the tile is complete."""


def compute_thread_values(kernel: LaunchTree, threads: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Values of the thread loops for linear numbers of threads, by loop name."""
    return split_digits(threads, {x.name: int(x.extent) for x in kernel.thread_loops})


def compute_block_tile(kernel: LaunchTree, block: int = 0) -> BlockTile:
    """The elements that a block writes, each with its thread; an element that a thread updates again and
    again is in it once."""
    target, lanes, region_extents, path = _find_target(kernel)
    extents = {x.loop.name: int(x.loop.extent) for x in path} | region_extents
    used = target.address.find_variables().union(*(g.form.find_variables() for g in target.guards))
    counts = {name: extent for name, extent in extents.items() if name in used}
    shortened = _limit_counts(counts, MOST_POINTS // max(int(kernel.thread_count), 1))
    shape = (int(kernel.thread_count), *counts.values())
    grid: dict[str, Any] = dict.fromkeys(extents, 0)
    for position, (name, count) in enumerate(counts.items(), 1):
        grid[name] = np.arange(count).reshape([-1 if i == position else 1 for i in range(len(shape))])
    number = np.arange(shape[0]).reshape(-1, *[1] * len(counts))
    grid |= compute_thread_values(kernel, number)
    grid |= split_digits(np.asarray(block), {x.name: int(x.extent) for x in kernel.block_loops})
    inside = np.ones(shape, bool)
    for guard in target.guards:
        value = evaluate_form(guard.form, grid)
        inside = inside & (value >= 0) & (value < guard.extent)
    for lane in lanes:
        inside = inside & (grid[lane.name] == 0)
    index = [np.broadcast_to(np.asarray(evaluate_form(f, grid)), shape)[inside] for f in target.index]
    return BlockTile(np.stack(index, axis=-1), np.broadcast_to(number, shape)[inside], tuple(shortened))


def _find_target(
    kernel: LaunchTree,
) -> tuple[TensorAccess, Sequence[Loop], dict[str, int], Sequence[tree.LoopNode]]:
    """The write to the output, the lanes that split its sum, its segments' extents, the loops around it."""
    for node, path in tree.walk_with_loops(kernel.body):
        if isinstance(node, tree.WriteNode):
            segments = {f"#{i}": int(s.extent) for i, s in enumerate(node.region.segments)}
            return node.target, node.reduction_lanes, segments, path
        if isinstance(node, tree.ComputeNode) and node.target.buffer is None:
            return node.target, (), {}, path
    raise AssertionError(f"{kernel.nest.output.name} is not written")


def _limit_counts(counts: dict[str, int], most: int) -> list[str]:
    """Halve the largest counts until their product is at most `most`; the names of those that changed."""
    changed: dict[str, None] = {}
    while int(np.prod([1, *counts.values()], dtype=object)) > max(most, 1):
        name = max(counts, key=lambda n: counts[n])
        if counts[name] == 1:
            break
        counts[name] = -(-counts[name] // 2)
        changed[name] = None
    return list(changed)


@dataclass(frozen=True, eq=False)
class TileGrid:
    """Two dimensions of a tile as a grid of threads."""

    owner: NDArray[np.int64]
    """Thread of each element, (rows, columns); -1 where the block writes none."""
    dims: tuple[int | None, int | None]
    """Dimensions of the output along rows and columns; None for a side of one element."""
    rows: NDArray[np.int64]
    """Coordinates of the rows along their dimension."""
    columns: NDArray[np.int64]
    fixed: dict[int, int]
    """The coordinate that was chosen for each other dimension that the tile moves along."""


def make_tile_grid(tile: BlockTile) -> TileGrid:
    """The last two dimensions along which the tile has more than one element, at the first element of the
    others."""
    moving = [d for d in range(tile.index.shape[1]) if len(np.unique(tile.index[:, d])) > 1]
    row, column = ([None, None, *moving])[-2:]
    fixed = {d: int(tile.index[:, d].min()) for d in moving if d not in (row, column)}
    chosen = np.ones(len(tile.thread), bool)
    for d, value in fixed.items():
        chosen &= tile.index[:, d] == value
    index, thread = tile.index[chosen], tile.thread[chosen]
    (rows, at_row), (columns, at_column) = (_number_values(index, d) for d in (row, column))
    owner = np.full((len(rows), len(columns)), -1)
    owner[at_row, at_column] = thread
    return TileGrid(owner, (row, column), rows, columns, fixed)


def _number_values(index: NDArray[np.int64], dim: int | None) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """The values along a dimension, and the number of that of each element."""
    values = index[:, dim] if dim is not None else np.zeros(len(index), np.int64)
    found, number = np.unique(values, return_inverse=True)
    return found, number


def merge_cells(grid: NDArray[np.int64]) -> list[tuple[int, int, int, int, int]]:
    """Rectangles of equal cells: (value, first row, first column, rows, columns). Cells of -1 are no part."""
    done: list[tuple[int, int, int, int, int]] = []
    above: dict[tuple[int, int, int], tuple[int, int]] = {}
    for r, line in enumerate(grid):
        edges = np.flatnonzero(np.diff(line)) + 1
        starts, ends = [0, *edges.tolist()], [*edges.tolist(), len(line)]
        here = {}
        for start, end in zip(starts, ends, strict=True):
            key = int(line[start]), start, end
            first, count = above.pop(key, (r, 0))
            here[key] = first, count + 1
        done += [(v, first, a, count, b - a) for (v, a, b), (first, count) in above.items()]
        above = here
    done += [(v, first, a, count, b - a) for (v, a, b), (first, count) in above.items()]
    return sorted((x for x in done if x[0] >= 0), key=lambda x: x[1:3])
