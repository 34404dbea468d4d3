"""How deep an expression may go: what walks it goes into each operation by a call of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from ekc.errors import InvalidInput

MOST_DEEP = 200
"""Operations inside operations; Python ends a recursion at some 1000 calls."""
T = TypeVar("T")


def shallow(what: str, root: T, below: Callable[[T], Iterable[T]]) -> T:
    """The root of a tree that is no deeper than `MOST_DEEP`; `below` gives what a node is made of."""
    level = [root]
    for _ in range(MOST_DEEP):
        level = list({id(x): x for node in level for x in below(node)}.values())
        if not level:
            return root
    raise InvalidInput(
        f"body of {what}: goes deeper than {MOST_DEEP} operations inside one another; use a reduction axis"
    )
