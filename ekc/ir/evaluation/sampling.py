"""Which blocks of a large launch to look at, where not all of them can be."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ekc.ir.nodes import LaunchTree
from ekc.ir.program import Loop


def count_output_tiles(kernel: LaunchTree) -> int:
    """How many blocks there are, those that share their sums counted once."""
    return math.prod(int(x.extent) for x in _list_output_loops(kernel))


def sample_blocks(kernel: LaunchTree, count: int, seed: int) -> NDArray[np.int64]:
    """The first and last block, corners of the grid of block loops, and random others: at most `count`.
    Blocks that share their sums count as one, for one alone has no result."""
    loops, total = _list_output_loops(kernel), count_output_tiles(kernel)
    if count >= total:
        return np.arange(int(kernel.block_count), dtype=np.int64)
    corners = [0]
    below = 1
    for loop in loops:
        corners += [c + below * (int(loop.extent) - 1) for c in corners[: count // 4]]
        below *= int(loop.extent)
    drawn = np.random.default_rng(seed).integers(0, total, size=2 * count).tolist()
    edges = list(dict.fromkeys([0, total - 1, *corners]))[: max(2, count * 3 // 4)]
    return _expand_to_blocks(kernel, np.array(list(dict.fromkeys([*edges, *drawn]))[:count], dtype=np.int64))


def _list_output_loops(kernel: LaunchTree) -> list[Loop]:
    """The loops whose blocks have outputs of their own, fastest first."""
    return [x for x in kernel.block_loops if not x.is_reduction]


def _expand_to_blocks(kernel: LaunchTree, tiles: NDArray[np.int64]) -> NDArray[np.int64]:
    """The linear numbers of blocks, from their numbers among loops that sum nothing, with those of every part
    of their sums."""
    blocks, parts, below = np.zeros_like(tiles), np.zeros(1, np.int64), 1
    for loop in kernel.block_loops:
        extent = int(loop.extent)
        if loop.is_reduction:
            parts = np.add.outer(np.arange(extent) * below, parts).ravel()
        else:
            blocks, tiles = blocks + tiles % extent * below, tiles // extent
        below *= extent
    return np.add.outer(blocks, parts).ravel()
