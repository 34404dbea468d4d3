"""Text of a kernel's tree, node by node.

Templates know the kinds of nodes of `ekc.ir.lowering.nodes` and nothing of operators. Everything that needs
arithmetic is computed in `ekc.codegen.emit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ekc.codegen.emit.accumulators import (
    build_combine_text,
    build_compute_text,
    build_init_text,
    build_reduce_text,
    build_write_text,
)
from ekc.codegen.emit.copies import build_cooperative_copy, build_private_copy, count_rounds
from ekc.codegen.emit.mma import (
    add_lane_parts,
    build_fragment_values,
    build_group_product_values,
    build_product_values,
    collect_loops,
    find_lane_row,
    format_wait,
    hoist_fragment_rows,
    hoist_tile_start,
)
from ekc.codegen.emit.scope import NodeText, Scope
from ekc.codegen.emit.strength_reduction import CopyValues, hoist_copy_starts, unroll_rounds
from ekc.ir.hardware.cp_async import count_pending_groups, count_tiles_ahead
from ekc.ir.lowering import nodes as tree


def build_node_texts(scope: Scope, nodes: Sequence[tree.Node]) -> tuple[NodeText, ...]:
    """The texts of nodes, in order."""
    return tuple(_build_node_text(scope, n) for n in nodes)


def _build_node_text(scope: Scope, node: tree.Node) -> NodeText:
    match node:
        case tree.LoopNode() if node.is_async:
            return _build_overlapped_loop(scope, node)
        case tree.LoopNode() if int(node.loop.stages) > 1 and _list_shared_stages(node):
            return _build_pipelined_loop(scope, node)
        case tree.LoopNode():
            return NodeText("loop", _build_loop_values(scope, node), build_node_texts(scope, node.body))
        case tree.StageNode() if node.buffer.scope == "shared":
            return NodeText("shared_stage", build_cooperative_copy(scope, node))
        case tree.StageNode():
            return NodeText("register_stage", build_private_copy(scope, node))
        case tree.FragmentNode():
            copy = scope.copy_indices.get(node.stage.staging.source, "")
            row = scope.fragment_rows.get(node.stage.buffer.name, "")
            return NodeText("fragment", build_fragment_values(node, scope.names, copy, row))
        case tree.MmaNode() if isinstance(node.a, tree.SharedFactor):
            return NodeText("product", build_group_product_values(node, scope.names, scope.fragment_rows))
        case tree.MmaNode():
            return NodeText("product", build_product_values(node, scope.names))
        case tree.WgmmaGroupNode():
            wait = format_wait(scope.kernel, scope.names)
            return NodeText("group", {"wait": wait}, build_node_texts(scope, node.body))
        case tree.ReduceNode():
            return build_reduce_text(scope, node)
        case tree.InitNode():
            return build_init_text(scope, node)
        case tree.ComputeNode():
            return build_compute_text(scope, node)
        case tree.LaneCombineNode():
            return build_combine_text(scope, node)
        case tree.WriteNode():
            return build_write_text(scope, node)
        case tree.BarrierNode() | tree.CopyWaitNode():
            return NodeText("barrier")


def _build_pipelined_loop(scope: Scope, node: tree.LoopNode) -> NodeText:
    """Double buffering: fetch the next tile into registers, use this one, then store the fetched tile."""
    name = scope.names[node.loop.name]
    stages = _list_shared_stages(node)
    rest = [n for n in node.body if n not in stages and not isinstance(n, tree.BarrierNode)]
    scope.copy_indices.update((s.buffer.name, f"{name} % 2") for s in stages)
    # The fetched elements are in registers, which cannot be indexed: every round is unrolled.
    copies = [build_cooperative_copy(scope, s) | {"unroll": ""} for s in stages]
    if scope.uses_pointer_increments:
        copies = [unroll_rounds(copy, s.buffer.region) for copy, s in zip(copies, stages, strict=True)]
    copies, starts = _hoist_copies(scope, node, stages, copies)
    rows = _hoist_fragment_rows(scope, rest)
    fetches, commits = (tuple(NodeText(kind, c) for c in copies) for kind in ("fetch", "commit"))
    body = build_node_texts(scope, rest)
    text = _build_loop_values(scope, node) | {
        "fetches": fetches,
        "commits": commits,
        "buffers": [_build_fetch_buffer(scope, s) for s in stages],
        "starts": starts,
        "rows": rows,
        "main_pragma": _format_main_pragma(node),
    }
    return NodeText("pipeline", text, body)


def _build_overlapped_loop(scope: Scope, node: tree.LoopNode) -> NodeText:
    """Asynchronous pipeline: tiles are copied iterations before their use, into one of several buffers."""
    name, stages, copies = scope.names[node.loop.name], int(node.loop.stages), _list_shared_stages(node)
    scope.copy_indices |= {s.buffer.name: f"{name}_copy" for s in copies}
    texts = [unroll_rounds(build_cooperative_copy(scope, s), s.buffer.region) for s in copies]
    texts, starts = _hoist_copies(scope, node, copies, texts)
    rest = [n for n in node.body if n not in copies and not isinstance(n, tree.CopyWaitNode)]
    rows = [*_hoist_fragment_rows(scope, rest), *_hoist_tile_starts(scope, node.loop.name, rest)]
    # Asynchronous products are started first; the wait for them comes after the copies have been issued.
    group = rest[0] if len(rest) == 1 and isinstance(rest[0], tree.WgmmaGroupNode) else None
    text = _build_loop_values(scope, node) | {
        "stages": stages,
        "ahead": count_tiles_ahead(stages),
        "pending": count_pending_groups(stages),
        "copies": tuple(NodeText("async_stage", copy) for copy in texts),
        "starts": starts,
        "rows": rows,
        "needs_proxy_fence": any(isinstance(n, tree.WgmmaGroupNode) for n in tree.walk_nodes(tuple(rest))),
        "grouped": group is not None,
        "wait": format_wait(scope.kernel, scope.names) if group else "",
        "main_pragma": _format_main_pragma(node),
    }
    return NodeText("async_pipeline", text, build_node_texts(scope, group.body if group else rest))


def _hoist_copies(
    scope: Scope, node: tree.LoopNode, stages: Sequence[tree.StageNode], copies: list[CopyValues]
) -> tuple[list[CopyValues], list[CopyValues]]:
    """The copies of a pipelined loop with their addresses computed before, where the kernel needs that, and
    the variables that are computed before the loop."""
    if not scope.uses_pointer_increments:
        return copies, []
    copies, found = hoist_copy_starts(scope.kernel, scope.names, node.loop, stages, copies)
    scope.preamble += found.before_loops
    return copies, found.before_tile_loop


def _hoist_fragment_rows(scope: Scope, nodes: Sequence[tree.Node]) -> list[dict[str, Any]]:
    """Values of the row addresses of fragments that a pipelined loop loads from its tiles."""
    starts, inside = [], list(tree.walk_nodes(tuple(nodes)))
    for node in inside:
        row = find_lane_row(node) if isinstance(node, tree.FragmentNode) else None
        if row is None:
            continue
        assert isinstance(node, tree.FragmentNode)
        copy = scope.copy_indices.get(node.stage.staging.source, "")
        found = hoist_fragment_rows(node, row, add_lane_parts(scope.names), collect_loops(inside), copy)
        if copy and found:
            scope.fragment_rows[node.stage.buffer.name] = found.source
            starts.append(found.start_values)
    return starts


def _hoist_tile_starts(scope: Scope, loop: str, nodes: Sequence[tree.Node]) -> list[dict[str, Any]]:
    """Values of the start addresses of tiles that `loop` copies and `wgmma` reads."""
    starts, inside = [], list(tree.walk_nodes(tuple(nodes)))
    for node in inside:
        if not isinstance(node, tree.MmaNode):
            continue
        for factor in (node.a, node.b):
            if isinstance(factor, tree.SharedFactor) and factor.staging.at == loop:
                name = factor.staging.name
                loops, copy = collect_loops(inside), scope.copy_indices[name]
                found = hoist_tile_start(node, factor, scope.names, loops, copy)
                scope.fragment_rows[name] = found.source
                starts.append(found.start_values)
    return starts


def _format_main_pragma(node: tree.LoopNode) -> str:
    """Pragma of a pipelined loop, which is unrolled where a step of the schedule says so."""
    return "#pragma unroll 1" if int(node.loop.unroll) == 1 else _format_pragma(node)


def _build_fetch_buffer(scope: Scope, stage: tree.StageNode) -> dict[str, Any]:
    elements, kind = count_rounds(scope, stage) * int(stage.staging.vector), stage.buffer.dtype.cuda_name
    return {"type": kind, "name": f"{scope.names[stage.buffer.name]}_next", "elements": elements}


def _build_loop_values(scope: Scope, node: tree.LoopNode) -> dict[str, Any]:
    """Values of every loop: name and type of the counter, iterations, pragma."""
    loop = node.loop
    return {
        "name": scope.names[loop.name],
        "type": "long long" if int(loop.extent) >= 2**31 else "int",
        "extent": int(loop.extent),
        "pragma": _format_pragma(node),
    }


def _format_pragma(node: tree.LoopNode) -> str:
    """`#pragma unroll` with the iterations that are written out; "" where the compiler chooses."""
    if int(node.loop.unroll) == 0 and not node.must_unroll:
        return ""
    count = int(node.copies)
    return "#pragma unroll" if count >= int(node.loop.extent) else f"#pragma unroll {count}"


def _list_shared_stages(node: tree.LoopNode) -> list[tree.StageNode]:
    """The shared tiles that a pipelined loop copies; none where compute_at has moved them to another loop."""
    return [n for n in node.body if isinstance(n, tree.StageNode) and n.buffer.scope == "shared"]
