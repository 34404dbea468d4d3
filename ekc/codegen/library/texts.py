"""Texts of generated files: comments, machine code as numbers, and the layout of the workspace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekc.ir.compute import TensorSpec

_WORKSPACE_ALIGNMENT_BYTES = 256
"""Bytes between the starts of workspace tensors, as cudaMalloc gives."""


def lay_out_workspace(tensors: Sequence[TensorSpec]) -> tuple[dict[str, int], int]:
    """Lay out the workspace: the offset of each intermediate tensor in bytes, and the bytes of all."""
    offsets, total = {}, 0
    for t in tensors:
        offsets[t.name] = total
        total += -(-t.bytes // _WORKSPACE_ALIGNMENT_BYTES) * _WORKSPACE_ALIGNMENT_BYTES
    return offsets, total


def clean_comment(text: str) -> str:
    """Make one line that cannot end a C comment."""
    return " ".join(text.split()).replace("*/", "* /").replace("/*", "/ *")


_WORD_BYTES = 8
_WORDS_PER_LINE = 5


def format_words(data: bytes) -> str:
    """Format bytes as elements of an array of `std::uint64_t`, which every compiler accepts at any size.

    Numbers are little-endian as on all hosts of GPUs, and filled up with zeros to a whole element.

    b"\\x01" becomes "    0x1,".
    """
    words = np.frombuffer(data + bytes(-len(data) % _WORD_BYTES), "<u8").tolist()
    starts = range(0, len(words), _WORDS_PER_LINE)
    return "\n".join("    " + " ".join(f"{w:#x}," for w in words[s : s + _WORDS_PER_LINE]) for s in starts)


def format_text_words(text: str) -> str:
    """Format a text as elements of an array of `std::uint64_t`, with a zero byte at its end."""
    return format_words(text.encode() + b"\0")
