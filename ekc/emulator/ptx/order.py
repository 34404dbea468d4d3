"""The order in which places of a kernel run while lanes stand at several of them.

The lowest place runs first, so lanes meet again where their paths do only if every place on the way comes
before that. A GPU's compiler sees to it by joining paths where they must meet; the order of the PTX text
does not: it may put one arm of a branch behind the place where both meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

Edges = Mapping[int, Sequence[int]]


def order_blocks(edges: Sequence[Sequence[int]]) -> list[int]:
    """Nodes 0 to n - 1 (0 is the entry) in the order in which they run.

    Both arms of a branch come before the place where they meet, all of a loop before what follows it, and
    nodes that nothing leads to last.
    """
    known = dict(enumerate(edges))
    reached = list(_arrange_nodes(known, known, 0))
    seen = set(reached)
    return reached + [node for node in known if node not in seen]


def _arrange_nodes(nodes: Iterable[int], edges: Edges, entry: int) -> Iterator[int]:
    """The nodes that `entry` leads to: loops in one piece, and each loop arranged likewise from its entry."""
    inside = set(nodes)
    for loop in _find_components(inside, edges, entry):
        if len(loop) == 1:
            yield loop[0]
        else:
            # The search came into the loop at the node that it left last. Without the way back it is no loop.
            head = loop[-1]
            cut = {node: [n for n in edges[node] if n != head] for node in loop}
            yield from _arrange_nodes(loop, cut, head)


def _find_components(nodes: set[int], edges: Edges, entry: int) -> list[list[int]]:
    """Tarjan's strongly connected components, those that come first first; the last node of each is the one
    that the search reached first. Of two arms the one that stands first in the text comes first."""
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    open_: list[int] = []
    placed: set[int] = set()
    found: list[list[int]] = []
    path: list[tuple[int, Iterator[int]]] = []

    def enter(node: int) -> None:
        number[node] = lowest[node] = len(number)
        open_.append(node)
        path.append((node, iter(sorted((n for n in edges[node] if n in nodes), reverse=True))))

    enter(entry)
    while path:
        node, left = path[-1]
        following = next(left, None)
        if following is None:
            path.pop()
            if path:
                lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[node])
            if lowest[node] == number[node]:
                first = open_.index(node)
                found.append(open_[first:][::-1])
                placed.update(open_[first:])
                del open_[first:]
        elif following not in number:
            enter(following)
        elif following not in placed:
            lowest[node] = min(lowest[node], number[following])
    return found[::-1]
