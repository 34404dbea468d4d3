"""Tiles stored in panels: of every row the first line of 128 bytes, row after row; then the second lines.

    row 0: a b     ->   a, c, e, ..., then b, d, f, ...       of a, b, ... a line each
    row 1: c d
    row 2: e f

So the rows of a panel are lines that follow each other, and with a swizzle of 8 chunks eight of them are a
pattern of 1024 bytes: what products of a warpgroup read (`ekc.ir.warpgroup`), however wide the tile is. Lines
stay whole, so that a request along a row, as copies make it, meets the same banks as without panels.
"""

from __future__ import annotations

from typing import Any

from ekc.ir.swizzle import SHARED_LINE_BYTES, SWIZZLE_CHUNKS

SWIZZLE_PATTERN_BYTES = SHARED_LINE_BYTES * SWIZZLE_CHUNKS[-1]
"""Where panels begin: at multiples of this, for hardware that swizzles addresses and not places in a tile."""


def count_panel_elements(itemsize: int) -> int:
    """Elements of a row in one panel."""
    return SHARED_LINE_BYTES // itemsize


def apply_panel_layout(address: Any, row_pitch: Any, row_count: Any, panel: int) -> Any:
    """Where an element lies, from its place in a tile of `rows` rows of `width`, row by row."""
    row, place = address // row_pitch, address % row_pitch
    return place // panel * (row_count * panel) + row * panel + place % panel


def find_panel_distance(step: int, row_pitch: int, row_count: int, panel: int) -> int | None:
    """How far an element lies that is `step` further on, where that is a number: by whole rows, or by whole
    lines of one row."""
    if step % row_pitch == 0:
        return step // row_pitch * panel
    return step // panel * row_count * panel if step % panel == 0 else None
