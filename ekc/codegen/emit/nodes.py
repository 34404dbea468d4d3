"""Text of a kernel's tree, node by node.

Templates know node kinds (loop, stage, fragment, init, compute, product, combine, write, barrier) and nothing
of operators. Everything that needs arithmetic is computed in `ekc.codegen.emit`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ekc.codegen.emit.accumulators import (
    build_combine_text,
    build_compute_text,
    build_init_text,
    build_reduce_text,
    build_write_text,
)
from ekc.codegen.emit.copies import build_cooperative_copy, build_private_copy
from ekc.codegen.emit.loops import (
    build_loop_values,
    build_overlapped_loop_text,
    build_pipelined_loop_text,
    list_shared_stages,
)
from ekc.codegen.emit.mma import build_fragment_values, build_product_values
from ekc.codegen.emit.scope import NodeText, Scope
from ekc.codegen.emit.wgmma import build_group_product_values, format_wait
from ekc.ir.lowering import nodes as tree


def build_node_texts(scope: Scope, nodes: Sequence[tree.Node]) -> tuple[NodeText, ...]:
    """The texts of nodes, in order."""
    return tuple(_build_node_text(scope, n) for n in nodes)


def _build_node_text(scope: Scope, node: tree.Node) -> NodeText:
    match node:
        case tree.LoopNode() if node.is_async:
            return build_overlapped_loop_text(scope, node, partial(build_node_texts, scope))
        case tree.LoopNode() if int(node.loop.stages) > 1 and list_shared_stages(node):
            return build_pipelined_loop_text(scope, node, partial(build_node_texts, scope))
        case tree.LoopNode():
            return NodeText("loop", build_loop_values(scope, node), build_node_texts(scope, node.body))
        case tree.StageNode() if node.buffer.scope == "shared":
            return NodeText("shared_stage", build_cooperative_copy(scope, node))
        case tree.StageNode():
            return NodeText("register_stage", build_private_copy(scope, node))
        case tree.FragmentNode():
            return NodeText("fragment", _build_fragment(scope, node))
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


def _build_fragment(scope: Scope, node: tree.FragmentNode) -> dict[str, Any]:
    name, copy = node.stage.buffer.name, scope.copy_indices.get(node.stage.staging.source, "")
    return build_fragment_values(node, scope.names, copy, scope.fragment_rows.get(name, ""))
