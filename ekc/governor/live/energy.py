"""Joules of a board: what its counter says, or where that says nothing, what its power readings come to."""

from __future__ import annotations

from collections.abc import Callable

from ekc.governor.samples import Values

STALL_S = 5.0
"""A counter that has not moved for so long while power was read stands still: they are updated within one."""


class BoardEnergy:
    """Of one board, from `add` to `add`: every recording is told, and the counter looked at after it.

    `counted` is the counter, None where the card tells none. It is not believed again once it stood still:
    what it left out is in no later count. `tell` gets one line then.
    """

    def __init__(
        self, read_counter_j: Callable[[], float | None], name: str, on_message: Callable[[str], None]
    ) -> None:
        self._read_counter_j, self._name, self._on_message = read_counter_j, name, on_message
        self._is_counter_trusted = True
        self._last_reading: tuple[float, float] | None = None
        """Second and watts of the last reading."""
        self._integrated_j = 0.0
        """By the readings, up to that one."""
        self._last_counter_j: float | None = None
        self._moved_s: float | None = None
        """When the counter was last seen to have moved, or first looked at."""
        self._offset_j = 0.0
        """The counter at that time, less what was drawn by the readings."""

    def compute_joules(self, now_s: float) -> float:
        """Up to now; only differences mean something."""
        if self._is_counter_trusted:
            self._update_counter(now_s)
        return self._offset_j + self._integrate_until(now_s)

    def add_readings(self, time_s: Values, power_w: Values) -> None:
        """What was read since the last time; NaN where a reading failed."""
        for at, watts in zip(time_s.tolist(), power_w.tolist(), strict=True):
            if watts >= 0:
                before, were = self._last_reading or (at, watts)
                self._integrated_j += 0.5 * (were + watts) * (at - before)
                self._last_reading = at, watts
        if self._is_counter_trusted and self._last_reading is not None:
            self._check_counter(self._last_reading[0])

    def _check_counter(self, at_s: float) -> None:
        if at_s - self._update_counter(at_s) < STALL_S:
            return
        self._is_counter_trusted = False
        why = (
            "counts no energy"
            if self._read_counter_j() is None
            else "has an energy counter that stands still"
        )
        self._on_message(f"{self._name} {why}; its power readings are added up instead")

    def _update_counter(self, at_s: float) -> float:
        """When the counter last moved; what is drawn is counted on from there."""
        counted = self._read_counter_j()
        if counted is not None and counted != self._last_counter_j:
            self._moved_s, self._last_counter_j = at_s, counted
            self._offset_j = counted - self._integrate_until(at_s)
        if self._moved_s is None:
            self._moved_s = at_s
        return self._moved_s

    def _integrate_until(self, at_s: float) -> float:
        """The last reading holds until the next one."""
        return self._integrated_j + (
            0.0 if self._last_reading is None else self._last_reading[1] * (at_s - self._last_reading[0])
        )
