"""How deep an expression may go: what walks it goes into each operation by a call of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from ekc.errors import InvalidInput

MAX_EXPR_DEPTH = 200
"""Operations inside operations; Python ends a recursion at some 1000 calls."""
T = TypeVar("T")


def check_depth(label: str, root: T, children: Callable[[T], Iterable[T]]) -> T:
    """The root of a tree that is no deeper than `MOST_DEEP`; `below` gives what a node is made of."""
    level = [root]
    for _ in range(MAX_EXPR_DEPTH):
        level = list({id(x): x for node in level for x in children(node)}.values())
        if not level:
            return root
    raise InvalidInput(
        f"body of {label}: goes deeper than {MAX_EXPR_DEPTH} operations inside one another; use a reduction axis"
    )
