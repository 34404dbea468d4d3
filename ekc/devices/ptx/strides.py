"""Trips of a loop that need not be followed one by one.

Where a loop only adds and compares numbers, and two trips in a row took the same way and added the same
amounts, every further trip does, up to the first one in which a comparison gives another result or a number
leaves the range of its type. That trip is found by division. So a loop of a billion trips costs what one of
five costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ekc.devices.ptx.values import Comparison, State, Value

_UNBOUNDED = 1 << 62
"""Trips of a loop that no comparison ends."""

Compared = Sequence[Comparison | None]


class Strides:
    """The amounts that the registers `names` grow by in each trip, for one loop."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._growth: dict[str, int] | None = None
        self._compared: Compared = ()

    def count(self, entry: State, end: State, compared: Compared) -> int:
        """How many of the next trips go exactly as this one did, from its first state to its last; 0 where
        nothing is known yet. `compared` are the numbers of its comparisons."""
        before, self._compared = self._compared, compared
        growth, self._growth = self._growth, _growth(self._names, entry, end)
        if growth is None or growth != self._growth or len(before) != len(compared):
            return 0
        return min((_steady_trips(a, b) for a, b in zip(before, compared, strict=True)), default=_UNBOUNDED)

    def jump(self, state: State, trips: int) -> State:
        """The state so many trips after `state`; to be called where `count` found them."""
        assert self._growth is not None
        moved = {
            name: Value(value.number + trips * self._growth[name], value.base)
            for name, value in state.own.items()
            if name in self._growth
        }
        self._growth, self._compared = None, ()
        return State(state.shared, state.own | moved)


def _growth(names: Iterable[str], entry: State, end: State) -> dict[str, int] | None:
    """The amount that a trip added to each register; None where some became another unknown quantity."""
    found = {}
    for name in names:
        if name in end.own:
            first, last = entry.get(name), end.own[name]
            if first.base != last.base:
                return None
            found[name] = last.number - first.number
    return found


def _steady_trips(before: Comparison | None, now: Comparison | None) -> int:
    """After how many more trips a comparison still has this result and its numbers are in their range."""
    if before is None or now is None:
        return _UNBOUNDED if before is now else 0
    if _sign(before.left - before.right) != _sign(now.left - now.right):
        return 0
    signed, bits = now.kind
    low = -(1 << bits - 1) if signed else 0
    left, right = now.left - before.left, now.right - before.right
    return min(
        _within(now.left, left, low, low + (1 << bits) - 1),
        _within(now.right, right, low, low + (1 << bits) - 1),
        _same_sign(now.left - now.right, left - right),
    )


def _within(number: int, growth: int, low: int, high: int) -> int:
    """After how many steps a number is still within a range."""
    if not growth:
        return _UNBOUNDED
    return (high - number) // growth if growth > 0 else (number - low) // -growth


def _same_sign(number: int, growth: int) -> int:
    """After how many steps a number is still negative, 0 or positive, whichever it is."""
    if not growth or number * growth > 0:
        return _UNBOUNDED
    return (abs(number) - 1) // abs(growth) if number else 0


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
