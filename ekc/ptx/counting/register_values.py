"""Registers of all threads on the paths through a kernel.

A path has the threads that take it. A branch on unknown data is taken both ways by all threads, so a path
also has the sides of such branches that it took. A value that was written on one side is known on that side
only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ekc.ptx.counting.integers import Value, choose

Sides = frozenset[tuple[int, bool]]
"""(block that ends with a branch on unknown data, whether the branch was taken)."""


@dataclass(frozen=True, slots=True)
class Path:
    """Threads at one place of a kernel."""

    lanes: Value = True
    """True for all threads and trips, else an array of them."""
    sides: Sides = frozenset()

    def narrow(self, condition: Value) -> Path | None:
        """Those threads for which a known condition holds; None without any."""
        if condition is True or condition is False:
            return self if condition else None
        lanes = condition if self.lanes is True else self.lanes & condition
        return Path(lanes, self.sides) if lanes.any() else None

    def choose_side(self, block: int, is_taken: bool) -> Path:
        """The path on one side of a branch on unknown data."""
        return Path(self.lanes, self.sides | {(block, is_taken)})


def join_paths(paths: Iterable[Path]) -> Path:
    """The path of the threads of several ones, where these meet."""
    first, *others = paths
    if not others:
        return first
    lanes, sides = first.lanes, first.sides
    for other in others:
        lanes = True if lanes is True or other.lanes is True else lanes | other.lanes
        sides &= other.sides
    return Path(True if lanes is True or lanes.all() else lanes, sides)


@dataclass
class RegisterValues:
    """Values by register, the newest first where they were written on different sides."""

    values: dict[str, tuple[tuple[Value, Sides], ...]] = field(default_factory=dict)

    def copy(self) -> RegisterValues:
        """Values that change on their own from here on."""
        return RegisterValues(self.values.copy())

    def read(self, name: str, sides: Sides) -> Value:
        """The value of a register on a path; None where it is unknown."""
        for value, written in self.values.get(name, ()):
            if written <= sides:
                return value
            if not any((block, not is_taken) in sides for block, is_taken in written):
                return None
        return None

    def set(self, name: str, value: Value, path: Path) -> None:
        """Write a register for all threads of a path, and any value for others."""
        kept = [one for one in self.values.get(name, ()) if not path.sides <= one[1]] if path.sides else ()
        self.values[name] = ((value, path.sides), *kept)

    def merge(self, name: str, value: Value, path: Path, bits: int) -> None:
        """Write a register for the threads of a path; others keep what they have."""
        if path.lanes is not True and name in self.values:
            old = self.read(name, path.sides)
            value = None if old is None or value is None else choose(path.lanes, value, old, bits)
        self.set(name, value, path)

    def take_changes(self, changed: RegisterValues, select: Callable[[Value], Value]) -> None:
        """Take what differs in a later copy, each value through `select`."""
        for name, entries in changed.values.items():
            if self.values.get(name) is not entries:
                self.values[name] = tuple((select(value), sides) for value, sides in entries)
