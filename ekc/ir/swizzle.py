"""The xor swizzle of a tile: chunks of 16 bytes change places, so that rows under each other use other banks.

Shared memory answers a line of 128 bytes at once, 8 chunks. A chunk's place in its line is xored with the
line's number, so that a column of chunks, which would lie in the same banks row after row, is spread over
all. (CuTe calls it Swizzle<3, 4, 3>.) No element leaves its line, so a tile of whole lines keeps its size.
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
