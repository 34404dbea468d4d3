"""Minutes: how many a part may use, and whether there is time for one more item."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

RESERVE = 0.03
"""Share of a part's time that is kept for writing."""


class Budget:
    """Runs from when it is made. An item is begun only where the longest one so far would still fit."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._now = seconds, now
        self._end = now() + seconds * (1 - RESERVE)
        self._longest = 0.0
        self.cut = False
        """Whether there was no time for some items."""

    def left(self) -> float:
        """Seconds, the reserve taken off; below 0 when it is late."""
        return self._end - self._now()

    def affordable(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items in order, as far as the time goes; the first in any case, while there is any time."""
        for item in items:
            if self.left() <= self._longest:
                self.cut = True
                return
            began = self._now()
            yield item
            self._longest = max(self._longest, self._now() - began)
