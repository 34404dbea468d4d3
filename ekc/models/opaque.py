"""Why a reader leaves a node opaque: arguments that it did not read, and errors of its own."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ekc.argument_checks import format_value

INTERNAL_ERROR = "internal error: "
"""How the reason of a node begins at which ekc failed. `Graph.internal_errors` and `Model.internal_errors`
list these nodes."""
_PACKAGE_FOLDER = Path(__file__).parents[1]


class ReadArguments(Mapping[str, Any]):
    """Arguments of one node by name. It records which were read, so that a reader can refuse a node of which
    it did not read all.

    >>> arguments = ReadArguments({"blocksize": 2, "mode": "CRD"})
    >>> arguments["blocksize"]
    2
    >>> arguments.describe_unread("attribute")
    "attribute mode='CRD' is not supported"
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = dict(arguments)
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._arguments[name]

    def __contains__(self, name: object) -> bool:
        return name in self._arguments

    def __iter__(self) -> Iterator[str]:
        return iter(self._arguments)

    def __len__(self) -> int:
        return len(self._arguments)

    def drop(self, *names: str) -> None:
        """Count arguments as read that change nothing."""
        self._read.update(names)

    def describe_unread(self, noun: str) -> str | None:
        """Why a node with arguments that were not read is opaque; None where all were read. `noun` is what
        the format calls them: "attribute", "argument"."""
        left = {name: value for name, value in self._arguments.items() if name not in self._read}
        unread = [f"{name}={format_value(value)}" for name, value in left.items()]
        if len(unread) < 2:
            return f"{noun} {unread[0]} is not supported" if unread else None
        return f"{noun}s {', '.join(unread)} are not supported"


def describe_internal_error(problem: Exception) -> str:
    """An unexpected error as the reason of a node: "internal error: KeyError: 3 (views.py, line 9)"."""
    frames = traceback.extract_tb(problem.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE_FOLDER)] or frames
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    text = " ".join(str(problem).split())[:200]
    return f"{INTERNAL_ERROR}{type(problem).__name__}{': ' if text else ''}{text}{place}"
