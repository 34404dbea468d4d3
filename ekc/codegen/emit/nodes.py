"""The views of a kernel's tree, node by node.

Templates know node kinds (loop, stage, fragment, init, compute, product, combine, write, barrier) and
nothing of operators; everything that needs arithmetic is worked out here and in the files named `*_views`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ekc.codegen.emit.accumulators import (
    make_combine_view,
    make_compute_view,
    make_init_view,
    make_reduce_view,
    make_write_view,
)
from ekc.codegen.emit.copies import build_cooperative_copy, build_private_copy
from ekc.codegen.emit.loops import (
    build_loop_text,
    list_shared_stages,
    make_overlapped_view,
    make_pipelined_view,
)
from ekc.codegen.emit.mma import build_fragment_text, build_product_text
from ekc.codegen.emit.scope import Scope
from ekc.codegen.emit.wgmma import build_group_product_text, format_wait
from ekc.codegen.render import NodeView
from ekc.ir.lowering.nodes import (
    BarrierNode,
    ComputeNode,
    CopyWaitNode,
    FragmentNode,
    InitNode,
    LaneCombineNode,
    LoopNode,
    MmaNode,
    Node,
    ReduceNode,
    SharedFactor,
    StageNode,
    WgmmaGroupNode,
    WriteNode,
)


def make_views(scope: Scope, nodes: Sequence[Node]) -> tuple[NodeView, ...]:
    """The views of nodes in order."""
    return tuple(_make_view(scope, n) for n in nodes)


def _make_view(scope: Scope, node: Node) -> NodeView:
    match node:
        case LoopNode() if node.is_async:
            return make_overlapped_view(scope, node, partial(make_views, scope))
        case LoopNode() if int(node.loop.stages) > 1 and list_shared_stages(node):
            return make_pipelined_view(scope, node, partial(make_views, scope))
        case LoopNode():
            return NodeView("loop", build_loop_text(scope, node), make_views(scope, node.body))
        case StageNode() if node.buffer.scope == "shared":
            return NodeView("shared_stage", build_cooperative_copy(scope, node))
        case StageNode():
            return NodeView("register_stage", build_private_copy(scope, node))
        case FragmentNode():
            return NodeView("fragment", _build_fragment(scope, node))
        case MmaNode() if isinstance(node.a, SharedFactor):
            return NodeView("product", build_group_product_text(node, scope.names, scope.fragment_rows))
        case MmaNode():
            return NodeView("product", build_product_text(node, scope.names))
        case WgmmaGroupNode():
            return NodeView(
                "group", {"wait": format_wait(scope.kernel, scope.names)}, make_views(scope, node.body)
            )
        case ReduceNode():
            return make_reduce_view(scope, node)
        case InitNode():
            return make_init_view(scope, node)
        case ComputeNode():
            return make_compute_view(scope, node)
        case LaneCombineNode():
            return make_combine_view(scope, node)
        case WriteNode():
            return make_write_view(scope, node)
        case BarrierNode() | CopyWaitNode():
            return NodeView("barrier")


def _build_fragment(scope: Scope, node: FragmentNode) -> dict[str, Any]:
    name, copy = node.stage.buffer.name, scope.copy_indices.get(node.stage.staging.source, "")
    return build_fragment_text(node, scope.names, copy, scope.fragment_rows.get(name, ""))
