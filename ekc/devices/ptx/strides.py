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

Comparisons = Sequence[Comparison | None]


class TripStrides:
    """The amounts that the registers `names` grow by in each trip, for one loop."""

    def __init__(self, registers: Iterable[str]) -> None:
        self._registers = tuple(registers)
        self._growth: dict[str, int] | None = None
        self._comparisons: Comparisons = ()

    def count(self, entry: State, end: State, comparisons: Comparisons) -> int:
        """How many of the next trips go exactly as this one did, from its first state to its last; 0 where
        nothing is known yet. `compared` are the numbers of its comparisons."""
        before, self._comparisons = self._comparisons, comparisons
        growth, self._growth = self._growth, _find_growth(self._registers, entry, end)
        if growth is None or growth != self._growth or len(before) != len(comparisons):
            return 0
        return min(
            (_count_steady_trips(a, b) for a, b in zip(before, comparisons, strict=True)), default=_UNBOUNDED
        )

    def skip_trips(self, state: State, trips: int) -> State:
        """The state so many trips after `state`; to be called where `count` found them."""
        assert self._growth is not None
        moved = {
            name: Value(value.number + trips * self._growth[name], value.base)
            for name, value in state.multi_writer_values.items()
            if name in self._growth
        }
        self._growth, self._comparisons = None, ()
        return State(state.single_writer_values, state.multi_writer_values | moved)


def _find_growth(registers: Iterable[str], entry: State, end: State) -> dict[str, int] | None:
    """The amount that a trip added to each register; None where some became another unknown quantity."""
    found = {}
    for name in registers:
        if name in end.multi_writer_values:
            first, last = entry.read_register(name), end.multi_writer_values[name]
            if first.base != last.base:
                return None
            found[name] = last.number - first.number
    return found


def _count_steady_trips(before: Comparison | None, now: Comparison | None) -> int:
    """After how many more trips a comparison still has this result and its numbers are in their range."""
    if before is None or now is None:
        return _UNBOUNDED if before is now else 0
    if _sign(before.left - before.right) != _sign(now.left - now.right):
        return 0
    signed, bits = now.kind
    low = -(1 << bits - 1) if signed else 0
    left, right = now.left - before.left, now.right - before.right
    return min(
        _count_steps_within(now.left, left, low, low + (1 << bits) - 1),
        _count_steps_within(now.right, right, low, low + (1 << bits) - 1),
        _count_steps_of_same_sign(now.left - now.right, left - right),
    )


def _count_steps_within(number: int, growth: int, low: int, high: int) -> int:
    """After how many steps a number is still within a range."""
    if not growth:
        return _UNBOUNDED
    return (high - number) // growth if growth > 0 else (number - low) // -growth


def _count_steps_of_same_sign(number: int, growth: int) -> int:
    """After how many steps a number is still negative, 0 or positive, whichever it is."""
    if not growth or number * growth > 0:
        return _UNBOUNDED
    return (abs(number) - 1) // abs(growth) if number else 0


def _sign(number: int) -> int:
    return (number > 0) - (number < 0)
