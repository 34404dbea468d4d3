"""Kernels of a library before and after it is written again: those that it lost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ekc.errors import EkcError
from ekc.file_limits import parse_json, read_plain_file
from ekc.ir.operator import operator_from_json

_MAX_NAMED = 2
"""Operators that a line names, at most."""


def read_contents(folder: Path, name: str) -> frozenset[tuple[str, str]]:
    """Read the operator and the board of each kernel of a library, from its record; nothing without a record
    that can be read."""
    try:
        record = parse_json(read_plain_file(folder / f"{name}.json"))
        return frozenset((_find_title(kernel), _find_board(kernel)) for kernel in record["kernels"])
    except (OSError, ValueError, KeyError, TypeError, EkcError):
        return frozenset()


def _find_title(kernel: Mapping[str, Any]) -> str:
    return str(operator_from_json(kernel["schedule"]["operator"])).splitlines()[0]


def _find_board(kernel: Mapping[str, Any]) -> str:
    return f"{kernel['board']}{' (simulated)' * (kernel['source'] == 'simulated')}"


def describe_lost(folder: Path, before: frozenset[tuple[str, str]], after: frozenset[tuple[str, str]]) -> str:
    """Describe in a line what a library had before it was written again, and has no more; "" if nothing.

    "out held matmul(A[8, 8] float32, B[8, 8] float32) for a100 (simulated); another --out keeps both".
    """
    lost = sorted(before - after)
    if not lost:
        return ""
    boards = sorted({board for _, board in lost})
    titles = list(dict.fromkeys(title for title, _ in lost))
    more = f" and {len(titles) - _MAX_NAMED} more" if len(titles) > _MAX_NAMED else ""
    named = ", ".join(titles[:_MAX_NAMED])
    return f"{folder} held {named}{more} for {', '.join(boards)}; another --out keeps both"
