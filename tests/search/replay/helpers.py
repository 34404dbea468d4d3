"""A table of figures with a known optimum."""

from __future__ import annotations

import itertools

import numpy as np

from ekc.search.replay.table_space import MeasurementTable, TableSpace

BLOCKS, TILES, UNROLLS = (16, 32, 64, 128, 256), (1, 2, 4, 8), (1, 2, 3, 4, 5, 6, 7, 8)


def made(failing: bool = False) -> MeasurementTable:
    """A kernel of our own making: legal are tiles that fit, least at block 64, tile 4, unroll 6, staged."""
    rows = [
        (b, t, u, s)
        for b, t, u, s in itertools.product(BLOCKS, TILES, UNROLLS, (0, 1))
        if b * t <= 1024 and (s or u != 5)
    ]
    settings = np.array(rows, dtype=np.float64)
    block, tile, unroll, staged = settings.T
    figures = (
        1 + np.abs(np.log2(block / 64)) + np.abs(np.log2(tile / 4)) + 0.1 * np.abs(unroll - 6) + (1 - staged)
    )
    if failing:
        figures[block == 256] = np.nan
    return MeasurementTable(("block", "tile", "unroll", "staged"), settings, figures, np.full(len(rows), 2.0))


TABLE = made()
SPACE = TableSpace(TABLE)
