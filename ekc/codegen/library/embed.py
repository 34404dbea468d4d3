"""Machine code as C++ text: arrays of 64-bit numbers, which every compiler accepts at any size."""

from __future__ import annotations

import numpy as np

_WORD_BYTES = 8
_WORDS_PER_LINE = 5


def format_words(data: bytes) -> str:
    """Format bytes as elements of an array of `std::uint64_t`, little-endian as all hosts of GPUs, filled up
    with zeros to a whole element.

    b"\\x01" becomes "    0x1,".
    """
    words = np.frombuffer(data + bytes(-len(data) % _WORD_BYTES), "<u8").tolist()
    starts = range(0, len(words), _WORDS_PER_LINE)
    return "\n".join("    " + " ".join(f"{w:#x}," for w in words[s : s + _WORDS_PER_LINE]) for s in starts)


def format_text_words(text: str) -> str:
    """Format a text likewise, with a zero at its end."""
    return format_words(text.encode() + b"\0")
