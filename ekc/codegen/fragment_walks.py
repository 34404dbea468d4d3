"""Fragments that walk: where the rows lie that a lane points at is worked out before the loop that brings the
tiles, in the first copy of each; the loop adds a copy's place, and numbers that an instruction can hold.

Written as one index, LLVM works the place out anew in every iteration, or makes bits of it that nothing can
be added to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ekc.codegen.around import kept_place
from ekc.codegen.names import Names
from ekc.codegen.tensor_views import filled
from ekc.codegen.walks import in_copy
from ekc.ir.access import Access
from ekc.ir.linear import Linear
from ekc.ir.nodes import FragmentNode, LoopNode
from ekc.ir.swizzle import period


@dataclass(frozen=True)
class Rows:
    """Where a lane's rows lie: the text that tells it before the loop, and the text of one inside."""

    start: dict[str, Any]
    source: str


def rows_before(
    node: FragmentNode, row: Access, names: Names, loops: Mapping[str, LoopNode], copy: str
) -> Rows | None:
    """The rows of a fragment, `loops` being those between the one that brings the tile and its use; None
    where a loop that is not written out moves them by more than a sum.

        &A_shared[k_0_copy][i_1 * 64 + i_2 * 16 + ..]   ->   A_fragment_from + k_0_copy * 4096 + i_2 * 1024
    """
    buffer = row.buffer
    assert buffer is not None
    steps = {a: int(c) for a, c in row.address.terms if isinstance(a, str) and a in loops}
    whole = period(int(buffer.swizzle), buffer.dtype.bytes)
    turning = [name for name in loops if steps.get(name, 0) % whole]
    joint = any(not isinstance(a, str) and a.variables() & loops.keys() for a, _ in row.address.terms)
    if joint or not all(_written_out(loops[name]) for name in turning):
        return None
    innermost = {x.name for x in node.tiles[-1:]}
    plain = {name: step for name, step in steps.items() if name not in turning}
    (start,) = names.free([f"{names[node.stage.buffer.name]}_from"])
    first = replace(names, zero=names.zero | plain.keys())
    extents = [int(loops[name].loop.extent) for name in turning]
    picked = start + "".join(f"[{names[name]}]" for name in turning)
    further = names.linear(Linear(tuple(plain.items())).scaled(buffer.dtype.bytes))
    text = {
        "declare": f"unsigned int {start}{''.join(f'[{n}]' for n in extents)};",
        "loops": [
            {"name": names[name], "extent": extent, "step": filled(node) if name in innermost else 1}
            for name, extent in zip(turning, extents, strict=True)
        ],
        "target": picked,
        "value": kept_place(first.cell(buffer, row.cell, "0")),
        "what": names[node.stage.buffer.name],
    }
    place = f"{picked} + {in_copy(buffer, copy)}"
    return Rows(text, place if further == "0" else f"{place} + {further}")


def between(nodes: Iterable[Any]) -> dict[str, LoopNode]:
    """The loops among nodes, by name, outer ones first."""
    return {n.loop.name: n for n in nodes if isinstance(n, LoopNode)}


def _written_out(node: LoopNode) -> bool:
    return node.written_out or int(node.loop.unroll) >= int(node.loop.extent)
