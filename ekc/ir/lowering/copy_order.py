"""In which order a block copies a tile by itself: strip by strip, each a full line of memory wide.

    16 lanes a row, 8 rows a round      ->   8 lanes a row, 16 rows a round, then the other half of the rows

Each thread then takes more pieces of fewer rows. Where a row lies, and whether it lies inside, is worked out
once for its pieces, which are a number apart: in a convolution that is most of what there is to work out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ekc.ir.affine import AffineForm, Extent
from ekc.ir.hardware.memory import CACHE_LINE_BYTES, SECTOR_BYTES
from ekc.ir.lowering.nodes import StageNode


def find_strip_width(node: StageNode, threads: Extent) -> Extent:
    """Elements of each row that are copied before the next ones of the first row: of one line, where rows
    have several and the block copies a strip of them in whole rounds; else all of it.

    All of it too where strips cost: a row that begins in the middle of a sector would end in one for each
    strip, and pieces of a swizzled row are no number apart, so what is told of where they go is no less.
    """
    *rows, last = node.buffer.region.segments
    row = last.extent
    if not node.is_async or not rows:
        return row
    line = CACHE_LINE_BYTES // node.buffer.dtype.bytes
    moves = node.buffer.region.size // row * line // node.staging.vector
    whole = (row % line == 0) & (moves % threads == 0)
    aligned = _has_aligned_rows(node.source.address, f"#{len(rows)}", node.source.dtype.bytes)
    # Of a tile of a view it is told of each row where it comes from.
    apart = np.asanyarray(node.buffer.swizzle) == 1 if node.buffer.region.view is None else True
    return np.where(whole & aligned & apart, np.minimum(line, row), row)


def _has_aligned_rows(address: AffineForm, last: str, itemsize: int) -> Any:
    """Whether rows along the coordinate `last` have their elements side by side, and begin with a sector."""
    steps = dict(address.terms)
    turned = any(not isinstance(atom, str) and last in atom.find_variables() for atom in steps)
    others = [address.const, *(step for atom, step in address.terms if atom != last)]
    fits: Any = (np.asanyarray(steps.get(last, 0)) == 1) & (not turned)
    for step in others:
        fits = fits & (np.asanyarray(step) * itemsize % SECTOR_BYTES == 0)
    return fits
