"""Joules of a board: what its counter says, or where that says nothing, what its power readings come to."""

from __future__ import annotations

from collections.abc import Callable

from ekc.governor.samples import Values

STALL_S = 5.0
"""A counter that has not moved for so long while power was read stands still: they are updated within one."""


class Energy:
    """Of one board, from `add` to `add`: every recording is told, and the counter looked at after it.

    `counted` is the counter, None where the card tells none. It is not believed again once it stood still:
    what it left out is in no later count. `tell` gets one line then.
    """

    def __init__(self, counted: Callable[[], float | None], name: str, tell: Callable[[str], None]) -> None:
        self._counted, self._name, self._tell = counted, name, tell
        self._believed = True
        self._last: tuple[float, float] | None = None
        """Second and watts of the last reading."""
        self._drawn_j = 0.0
        """By the readings, up to that one."""
        self._counter_j: float | None = None
        self._moved_s: float | None = None
        """When the counter was last seen to have moved, or first looked at."""
        self._offset_j = 0.0
        """The counter at that time, less what was drawn by the readings."""

    def joules(self, now_s: float) -> float:
        """Up to now; only differences mean something."""
        if self._believed:
            self._look(now_s)
        return self._offset_j + self._drawn_by(now_s)

    def add(self, time_s: Values, power_w: Values) -> None:
        """What was read since the last time; NaN where a reading failed."""
        for at, watts in zip(time_s.tolist(), power_w.tolist(), strict=True):
            if watts >= 0:
                before, were = self._last or (at, watts)
                self._drawn_j += 0.5 * (were + watts) * (at - before)
                self._last = at, watts
        if self._believed and self._last is not None:
            self._judge(self._last[0])

    def _judge(self, at_s: float) -> None:
        if at_s - self._look(at_s) < STALL_S:
            return
        self._believed = False
        why = "counts no energy" if self._counted() is None else "has an energy counter that stands still"
        self._tell(f"{self._name} {why}; its power readings are added up instead")

    def _look(self, at_s: float) -> float:
        """When the counter last moved; what is drawn is counted on from there."""
        counted = self._counted()
        if counted is not None and counted != self._counter_j:
            self._moved_s, self._counter_j = at_s, counted
            self._offset_j = counted - self._drawn_by(at_s)
        if self._moved_s is None:
            self._moved_s = at_s
        return self._moved_s

    def _drawn_by(self, at_s: float) -> float:
        """The last reading holds until the next one."""
        return self._drawn_j + (0.0 if self._last is None else self._last[1] * (at_s - self._last[0]))
