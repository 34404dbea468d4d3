"""Order in which the threads of a block copy a tile asynchronously: strip by strip, each a cache line wide.

    16 lanes a row, 8 rows a round      ->   8 lanes a row, 16 rows a round, then the other half of the rows

Each thread then copies more vectors of fewer rows. The address of a row and its guard are computed once for
these vectors, which have constant distances; in a convolution that is most of the address arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.ir.affine import AffineForm, Extent
from ekc.ir.hardware.memory import CACHE_LINE_BYTES, SECTOR_BYTES
from ekc.ir.lowering.nodes import StageNode


def find_strip_width(node: StageNode, threads: Extent) -> Extent:
    """Width of a strip in elements: a cache line where rows have several lines and a strip is copied in whole
    rounds, else the whole row.

    It is also the whole row where strips do not pay. A row that begins inside a sector would end in a partial
    sector in every strip. Vectors of a swizzled row have no constant distances, so that each needs an
    address.
    """
    *rows, last = node.buffer.region.segments
    row = last.extent
    if not node.is_async or not rows:
        return row
    line = CACHE_LINE_BYTES // node.buffer.dtype.bytes
    moves = node.buffer.region.size // row * line // node.staging.vector
    is_whole = (row % line == 0) & (moves % threads == 0)
    aligned = _has_aligned_rows(node.source.address, f"#{len(rows)}", node.source.dtype.bytes)
    # In an im2col tile the source address of each row is computed anyway.
    is_plain = np.asanyarray(node.buffer.swizzle) == 1 if node.buffer.region.view is None else True
    return np.where(is_whole & aligned & is_plain, np.minimum(line, row), row)


def _has_aligned_rows(address: AffineForm, last: str, itemsize: int) -> Any:
    """Whether elements along the coordinate `last` are neighbours in memory, and rows begin with a sector."""
    steps = dict(address.terms)
    in_quotient = any(not isinstance(atom, str) and last in atom.find_variables() for atom in steps)
    others = [address.const, *(step for atom, step in address.terms if atom != last)]
    fits: Any = (np.asanyarray(steps.get(last, 0)) == 1) & (not in_quotient)
    for step in others:
        fits = fits & (np.asanyarray(step) * itemsize % SECTOR_BYTES == 0)
    return fits
