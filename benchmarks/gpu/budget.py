"""Minutes: how many a part may use, and whether there is time for one more item."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")

RESERVE = 0.03
"""Share of a part's time that is kept for writing."""


class Budget:
    """Time of a part, from its creation. An item is begun only where it would still fit."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._now = seconds, now
        self._end = now() + seconds * (1 - RESERVE)
        self._longest: dict[float, float] = {}
        self.cut = False
        """Whether there was no time for some items."""

    def compute_left_s(self) -> float:
        """Remaining seconds without the reserve; below 0 after the end."""
        return self._end - self._now()

    def take_affordable(
        self, items: Iterable[Item], guess_s: Callable[[Item], float] = lambda item: 0.0
    ) -> Iterator[Item]:
        """The items in order, as far as the time goes. Those of one guess are of a kind: one is begun only
        where the longest of its kind so far would still fit, the first of a kind where the guess does. What
        is too long is passed over while there is time for a shorter kind."""
        for item in items:
            kind = guess_s(item)
            if self.compute_left_s() <= self._longest.get(kind, kind):
                self.cut = True
                if self.compute_left_s() <= min(self._longest.values(), default=0.0):
                    return
                continue
            began = self._now()
            yield item
            self._longest[kind] = max(self._longest.get(kind, 0.0), self._now() - began)

    def share_time(
        self, items: Sequence[Item], good_s: float, least_s: float
    ) -> Iterator[tuple[Item, float]]:
        """Items with a share of the time each: as many as can have `good_s`. One that took longer than its
        share keeps out no other that can still have `least_s`. The first is begun in any case."""
        chosen = items[: max(1, int(self.compute_left_s() // good_s))]
        for n, item in enumerate(chosen):
            share = self.compute_left_s() / (len(chosen) - n)
            if n and share < least_s:
                break
            yield item, share
        else:
            self.cut = self.cut or len(chosen) < len(items)
            return
        self.cut = True
