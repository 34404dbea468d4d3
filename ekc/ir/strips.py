"""In which order a block copies a tile by itself: strip by strip, each a full line of memory wide.

    16 lanes a row, 8 rows a round      ->   8 lanes a row, 16 rows a round, then the other half of the rows

Each thread then takes more pieces of fewer rows. Where a row lies, and whether it lies inside, is worked out
once for its pieces, which are a number apart: in a convolution that is most of what there is to work out.
"""

from __future__ import annotations

import numpy as np

from ekc.ir.linear import Extent
from ekc.ir.nodes import StageNode

LINE_BYTES = 128
"""What a cache line holds, and a round of shared memory's banks."""


def strip(node: StageNode, threads: Extent) -> Extent:
    """Elements of each row that are copied before the next ones of the first row: of one line, where rows
    have several and the block copies a strip of them in whole rounds; else all of it, as of a tile that is
    one row."""
    *rows, last = node.buffer.region.segments
    row = last.extent
    if not node.asynchronous or not rows:
        return row
    line = LINE_BYTES // node.buffer.dtype.bytes
    moves = node.buffer.region.size // row * line // node.staging.vector
    return np.where((row % line == 0) & (moves % threads == 0), np.minimum(line, row), row)
