"""Minutes: how many a part may use, and whether there is time for one more item."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")

RESERVE = 0.03
"""Share of a part's time that is kept for writing."""


class Budget:
    """Runs from when it is made. An item is begun only where it would still fit."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._now = seconds, now
        self._end = now() + seconds * (1 - RESERVE)
        self._longest: dict[object, float] = {}
        self.cut = False
        """Whether there was no time for some items."""

    def left(self) -> float:
        """Seconds, the reserve taken off; below 0 when it is late."""
        return self._end - self._now()

    def affordable(
        self, items: Iterable[Item], kind: Callable[[Item], object] = lambda item: None
    ) -> Iterator[Item]:
        """The items in order, as far as the time goes: one is begun only where the longest of its kind so far
        would still fit, so that a few long ones do not keep the short ones out. The first of a kind is begun
        while there is any time."""
        for item in items:
            if self.left() <= self._longest.get(kind(item), 0.0):
                self.cut = True
                return
            began = self._now()
            yield item
            took = self._now() - began
            self._longest[kind(item)] = max(self._longest.get(kind(item), 0.0), took)

    def shared(self, items: Sequence[Item], good_s: float, least_s: float) -> Iterator[tuple[Item, float]]:
        """Items with a share of the time each: as many as can have `good_s`. One that took longer than its
        share keeps out no other that can still have `least_s`. The first is begun in any case."""
        chosen = items[: max(1, int(self.left() // good_s))]
        for n, item in enumerate(chosen):
            share = self.left() / (len(chosen) - n)
            if n and share < least_s:
                break
            yield item, share
        else:
            self.cut = self.cut or len(chosen) < len(items)
            return
        self.cut = True
