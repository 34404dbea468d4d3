"""Lines in a gzip file that grows by one compressed member at a time: a kill loses the last one only."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

GZIP_WINDOW_BITS = 16 + zlib.MAX_WBITS
"""Window bits of a gzip member for zlib."""
PIECE_BYTES = 4096
"""Bytes that are unpacked together; bytes after the end of a member are unpacked again."""


@dataclass(frozen=True)
class UnpackedMembers:
    """Content of the complete members of a file."""

    text: bytes
    complete_bytes: int
    """Bytes of the file with complete members; the rest is a member that was cut short."""


def unpack_members(data: bytes) -> UnpackedMembers:
    """Unpack all complete members. Raises `ValueError` for bytes that are no gzip, or damaged."""
    parts: list[bytes] = []
    good = 0
    while good < len(data):
        one, found, place = zlib.decompressobj(GZIP_WINDOW_BITS), [], good
        try:
            while not one.eof and place < len(data):
                piece = data[place : place + PIECE_BYTES]
                found.append(one.decompress(piece))
                place += len(piece)
        except zlib.error as problem:
            raise ValueError(f"{problem}, in the gzip member at byte {good}") from None
        if not one.eof:
            break
        parts += found
        good = place - len(one.unused_data)
    return UnpackedMembers(b"".join(parts), good)


def pack_line(line: bytes) -> bytes:
    """Pack a line as a member; the same bytes for the same line."""
    one = zlib.compressobj(9, zlib.DEFLATED, GZIP_WINDOW_BITS)
    return one.compress(line) + one.flush()
