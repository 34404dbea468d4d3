"""Lines in a gzip file that grows by one compressed member at a time: a kill loses the last one only."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

GZIP = 16 + zlib.MAX_WBITS
"""What zlib calls a gzip member."""
PIECE = 4096
"""Bytes looked at together: what follows a member is looked at again."""


@dataclass(frozen=True)
class Members:
    """What could be read of a file."""

    text: bytes
    good: int
    """Bytes of the file that hold it; the rest is a member that was cut short."""


def unpack(data: bytes) -> Members:
    """All whole members. Raises `ValueError` for bytes that are no gzip, or damaged."""
    parts: list[bytes] = []
    good = 0
    while good < len(data):
        one, found, place = zlib.decompressobj(GZIP), [], good
        try:
            while not one.eof and place < len(data):
                piece = data[place : place + PIECE]
                found.append(one.decompress(piece))
                place += len(piece)
        except zlib.error as problem:
            raise ValueError(f"{problem}, in the gzip member at byte {good}") from None
        if not one.eof:
            break
        parts += found
        good = place - len(one.unused_data)
    return Members(b"".join(parts), good)


def pack(line: bytes) -> bytes:
    """A member; the same bytes for the same line."""
    one = zlib.compressobj(9, zlib.DEFLATED, GZIP)
    return one.compress(line) + one.flush()
