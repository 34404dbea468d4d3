"""The xor swizzle of a tile: chunks of 16 bytes change places, so that rows under each other use other banks.

Shared memory answers a line of 128 bytes at once, 8 chunks. A chunk's place in its line is xored with the
line's number, so that a column of chunks, which would lie in the same banks row after row, is spread over
all. (CuTe calls it Swizzle<3, 4, 3>.) No element leaves its line, so a tile of whole lines keeps its size.

Tiles stored in panels: of every row the first line of 128 bytes, row after row; then the second lines.

    row 0: a b     ->   a, c, e, ..., then b, d, f, ...       of a, b, ... a line each
    row 1: c d
    row 2: e f

So the rows of a panel are lines that follow each other, and with a swizzle of 8 chunks eight of them are a
pattern of 1024 bytes: what products of a warpgroup read (`ekc.ir.hardware.wgmma`), however wide the tile is. Lines
stay whole, so that a request along a row, as copies make it, meets the same banks as without panels.
"""

from __future__ import annotations

from typing import Any

CHUNK_BYTES = 16
"""What one lane moves at once, at most: a vector never crosses a chunk."""
SHARED_LINE_BYTES = 128
SWIZZLE_CHUNKS = (1, 2, 4, 8)
"""How many chunks change places with each other; 1 leaves them where they are."""


def apply_swizzle(address: Any, chunks: Any, itemsize: int) -> Any:
    """Where an element lies, from its place in a tile without swizzle; both in elements from the start."""
    chunk, line = CHUNK_BYTES // itemsize, SHARED_LINE_BYTES // itemsize
    return address ^ (address // line % chunks * chunk)


def find_swizzle_period(chunks: int, itemsize: int) -> int:
    """Elements after which the chunks change places as before: that far on, an element lies that far on."""
    return 1 if chunks == 1 else SHARED_LINE_BYTES // itemsize * chunks


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
