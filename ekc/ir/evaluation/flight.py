"""Groups of copies on their way to shared memory, for the evaluator."""

from __future__ import annotations

from collections import deque
from typing import Any

from numpy.typing import NDArray

PendingCopy = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""A tile [block, thread, element], the elements it will get, and their values."""


class InFlightCopies:
    """Copies read at once and land when their group is waited for, oldest first."""

    def __init__(self) -> None:
        self.groups: deque[list[PendingCopy]] = deque()

    def commit_group(self, group: list[PendingCopy]) -> None:
        """Close a group."""
        self.groups.append(group)

    def wait_for_groups(self, groups_left: int) -> None:
        """All but the newest `left` groups land."""
        while len(self.groups) > groups_left:
            for tile, where, values in self.groups.popleft():
                tile[:, :, where] = values
