"""Memory as a warp sees it: sectors, banks, and the layouts of tiles in shared memory.

The xor swizzle of a tile: chunks of 16 bytes change places, so that rows under each other use other banks.
Shared memory answers a line of 128 bytes at once, 8 chunks. The chunk's place in its line is xored with the
line's number. A column of chunks would otherwise be in the same banks row after row; so it is spread over all
banks. (CuTe calls it Swizzle<3, 4, 3>.) No element leaves its line, so a tile of whole lines keeps its size.

The panel layout stores the first line of 128 bytes of every row, row after row; then the second lines.

    row 0: a b     ->   a, c, e, ..., then b, d, f, ...       (a, b, ... are a line each)
    row 1: c d
    row 2: e f

The rows of a panel are lines that follow each other. With a swizzle of 8 chunks, eight of them are a pattern
of 1024 bytes: what `wgmma` reads (`ekc.ir.hardware.wgmma`), however wide the tile is. Lines stay whole, so a
request along a row, as copies make it, meets the same banks as without panels.
"""

from __future__ import annotations

from typing import Any

WARP = 32
"""Lanes of a warp."""
SECTOR_BYTES = 32
"""Bytes of a sector, the unit in which L1 and L2 are read."""
PAIR_BYTES = 64
"""Bytes of two neighbouring sectors, which DRAM moves at once by default."""
CACHE_LINE_BYTES = 128
"""Bytes of a cache line, and of one wavefront of shared memory."""
BANKS = 32
"""Banks of shared memory."""
BANK_BYTES = 4
"""Bytes of one word of a bank."""
CHUNK_BYTES = 16
"""Most bytes that one lane moves at once: a vector never crosses a chunk."""
SHARED_LINE_BYTES = 128
"""Bytes that all banks of shared memory hold side by side."""
SWIZZLE_CHUNKS = (1, 2, 4, 8)
"""Legal counts of chunks that change places with each other; 1 is no swizzle."""


def apply_swizzle(address: Any, chunks: Any, itemsize: int) -> Any:
    """Address of an element in a swizzled tile, from its address without swizzle; both in elements."""
    chunk, line = CHUNK_BYTES // itemsize, SHARED_LINE_BYTES // itemsize
    return address ^ (address // line % chunks * chunk)


def compute_swizzle_period(chunks: int, itemsize: int) -> int:
    """Elements after which the swizzle repeats: a step of so many moves the stored address as far."""
    return 1 if chunks == 1 else SHARED_LINE_BYTES // itemsize * chunks


SWIZZLE_PATTERN_BYTES = SHARED_LINE_BYTES * SWIZZLE_CHUNKS[-1]
"""Bytes of a whole swizzle pattern, after which start addresses give the same wavefronts again. Panels are
aligned to it, as the hardware swizzles addresses, not places in a tile."""


def count_panel_elements(itemsize: int) -> int:
    """Elements of a row in one panel."""
    return SHARED_LINE_BYTES // itemsize


def apply_panel_layout(address: Any, row_pitch: Any, row_count: Any, panel: int) -> Any:
    """Address of an element in a tile stored in panels, from its row-major address; both in elements."""
    row, place = address // row_pitch, address % row_pitch
    return place // panel * (row_count * panel) + row * panel + place % panel


def compute_panel_distance(step: int, row_pitch: int, row_count: int, panel: int) -> int | None:
    """Stored distance of a row-major step, in elements; None for a step of no whole rows or lines."""
    if step % row_pitch == 0:
        return step // row_pitch * panel
    return step // panel * row_count * panel if step % panel == 0 else None
