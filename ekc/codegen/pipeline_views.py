"""Loops that copy the tiles of later iterations while they use that of this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ekc.codegen.copy_views import cooperative, rounds_of
from ekc.codegen.fragment_walks import between, rows_before
from ekc.codegen.rounds import steady
from ekc.codegen.scope import Scope
from ekc.codegen.tensor_views import rows_of, with_lane_parts
from ekc.codegen.view import View
from ekc.codegen.walks import walked
from ekc.codegen.warpgroup_views import begins_before, waited
from ekc.ir.async_copy import groups_left, tiles_ahead
from ekc.ir.nodes import (
    BarrierNode,
    FragmentNode,
    GroupNode,
    LoopNode,
    MmaNode,
    Node,
    SharedFactor,
    StageNode,
    WaitNode,
    walk,
)

Inner = Callable[[Sequence[Node]], tuple[View, ...]]
"""Makes the views of what a loop holds."""


def pipelined_view(scope: Scope, node: LoopNode, inner: Inner) -> View:
    """Two copies: fetch the next tile into registers, use this one, then store the fetched tile."""
    name = scope.names[node.loop.name]
    stages = shared_stages(node)
    rest = [n for n in node.body if n not in stages and not isinstance(n, BarrierNode)]
    for s in stages:
        scope.parity[s.buffer.name] = f"{name} % 2"
    # The fetched elements live in registers, which have no index: every round is written out.
    copies = [cooperative(scope, s) | {"unroll": ""} for s in stages]
    starts: list[dict[str, Any]] = []
    if scope.walks:
        copies = [steady(text, s.buffer.region) for text, s in zip(copies, stages, strict=True)]
        copies, found = walked(scope.kernel, scope.names, node.loop, stages, copies)
        scope.early += found.early
        starts = found.late
    rows = _rows_before(scope, rest)
    fetches, commits = (tuple(View(kind, c) for c in copies) for kind in ("fetch", "commit"))
    body = inner(rest)
    text = loop_text(scope, node) | {
        "fetches": fetches,
        "commits": commits,
        "buffers": [_fetched(scope, s) for s in stages],
        "starts": starts,
        "rows": rows,
        "written": _written(scope, node),
    }
    return View("pipeline", text, body)


def overlapped_view(scope: Scope, node: LoopNode, inner: Inner) -> View:
    """Several copies: each tile is copied by itself some iterations before its use."""
    name, stages, copies = scope.names[node.loop.name], int(node.loop.pipeline), shared_stages(node)
    scope.parity |= {s.buffer.name: f"{name}_copy" for s in copies}
    texts = [steady(cooperative(scope, s), s.buffer.region) for s in copies]
    starts: list[dict[str, Any]] = []
    if scope.walks:
        texts, found = walked(scope.kernel, scope.names, node.loop, copies, texts)
        scope.early += found.early
        starts = found.late
    rest: Sequence[Node] = [n for n in node.body if n not in copies and not isinstance(n, WaitNode)]
    rows = [*_rows_before(scope, rest), *_tiles_before(scope, node.loop.name, rest)]
    # Products that run by themselves are started first, and waited for when the copies have been issued.
    group = rest[0] if len(rest) == 1 and isinstance(rest[0], GroupNode) else None
    text = loop_text(scope, node) | {
        "stages": stages,
        "ahead": tiles_ahead(stages),
        "left": groups_left(stages),
        "copies": tuple(View("async_stage", text) for text in texts),
        "starts": starts,
        "rows": rows,
        "seen": any(isinstance(n, GroupNode) for n in walk(tuple(rest))),
        "grouped": group is not None,
        "wait": waited(scope.kernel, scope.names) if group else "",
        "written": _written(scope, node),
    }
    return View("async_pipeline", text, inner(group.body if group else rest))


def _rows_before(scope: Scope, nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """What tells where the rows of fragments lie that nodes of a pipelined loop take."""
    starts, inside = [], list(walk(tuple(nodes)))
    for node in inside:
        row = rows_of(node) if isinstance(node, FragmentNode) else None
        if row is None:
            continue
        assert isinstance(node, FragmentNode)
        copy = scope.parity.get(node.stage.staging.source, "")
        found = rows_before(node, row, with_lane_parts(scope.names), between(inside), copy)
        if copy and found:
            scope.rows[node.stage.buffer.name] = found.source
            starts.append(found.start)
    return starts


def _tiles_before(scope: Scope, loop: str, nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """What tells where tiles begin that a loop brings and products of a warpgroup find by themselves."""
    starts, inside = [], list(walk(tuple(nodes)))
    for node in inside:
        if not isinstance(node, MmaNode):
            continue
        for factor in (node.a, node.b):
            if isinstance(factor, SharedFactor) and factor.staging.at == loop:
                name = factor.staging.name
                found = begins_before(node, factor, scope.names, between(inside), scope.parity[name])
                scope.rows[name] = found.source
                starts.append(found.start)
    return starts


def _written(scope: Scope, node: LoopNode) -> str:
    """How much of a pipelined loop is written out: none of it, unless a step says so."""
    return " 1" if int(node.loop.unroll) == 1 else str(loop_text(scope, node)["unroll"])


def _fetched(scope: Scope, s: StageNode) -> dict[str, Any]:
    elements = rounds_of(scope, s) * int(s.staging.vector)
    return {
        "type": s.buffer.dtype.cuda,
        "name": f"{scope.names[s.buffer.name]}_next",
        "elements": elements,
    }


def loop_text(scope: Scope, node: LoopNode) -> dict[str, Any]:
    """What every loop says of itself: counter, trips, how far it is unrolled."""
    loop = node.loop
    full = node.written_out or int(loop.unroll) >= int(loop.extent)
    unroll = "" if full else f" {int(loop.unroll)}"
    counter = "long long" if int(loop.extent) >= 2**31 else "int"
    return {"name": scope.names[loop.name], "type": counter, "extent": int(loop.extent), "unroll": unroll}


def shared_stages(node: LoopNode) -> list[StageNode]:
    """The copies that a pipelined loop overlaps; none where compute_at has moved them to another loop."""
    return [n for n in node.body if isinstance(n, StageNode) and n.buffer.scope == "shared"]
