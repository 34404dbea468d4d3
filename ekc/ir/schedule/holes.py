"""Holes: open numbers in the steps of a structure, and the values that a user allows for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ekc.argument_checks import check_text, format_value
from ekc.errors import InvalidInput
from ekc.ir.validate import check_int, to_tuple

MAX_HOLE_NUMBER = 2**20
"""Largest number that fills a hole."""
MAX_HOLE_VALUES = 4096
"""Most values of a hole."""


@dataclass(frozen=True)
class Hole:
    """An open number in the step list of a structure; the decision of that name fills it."""

    name: str
    decision: str = field(default="", repr=False)
    """Name that `hole` was given."""
    column: int = field(default=0, repr=False)
    """Place of the number in a value."""
    rows: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    """Allowed values of the decision, each a row of numbers; () where a structure has them."""

    def __str__(self) -> str:
        return f"<{self.name}>"


def hole(name: str, values: Iterable[Any]) -> Any:
    """A number that a step leaves open, and the values that a search may fill in.

    >>> ekc.ir.schedule.Unroll("k.1", ekc.hole("unroll", [1, 4, 16]))
    >>> ekc.ir.schedule.Split("i", ekc.hole("tile.i", [(16, 4), (8, 8)]))

    values: whole numbers from 0 to 2**20, or tuples of such numbers that belong together; at most 4,096, in
    any order. Returns a `Hole` for numbers. For tuples it returns a tuple of holes, one for each place: the
    factors of a `Split`, or by index the fields of other steps. A name has one list of values, and its
    holes have one value in all steps of a schedule. Raises `InvalidInput`.
    """
    check_text("hole", name, "a name such as 'tile.i'")
    listed = to_tuple(values)
    if listed is None:
        raise InvalidInput(
            f"hole {name!r}: {format_value(values)} is no list of values; write hole({name!r}, [1, 2, 4])"
        )
    check_int(f"hole {name!r}: number of values", len(listed), MAX_HOLE_VALUES)
    parts = list(map(to_tuple, listed))
    for value, part in zip(listed, parts, strict=True):
        if len(part or ()) != len(parts[0] or ()) or part == ():
            raise InvalidInput(
                f"hole {name!r}: {format_value(value)} beside {format_value(listed[0])}; "
                "give values of one length"
            )
        for number in part or (value,):
            check_int(f"hole {name!r}: a value", number, MAX_HOLE_NUMBER, minimum=0)
    numbers = [tuple(map(int, part or (value,))) for value, part in zip(listed, parts, strict=True)]
    rows = tuple(dict.fromkeys(numbers))
    if parts[0] is None:
        return Hole(name, name, 0, rows)
    return tuple(Hole(f"{name}.{i + 1}", name, i, rows) for i in range(len(rows[0])))
