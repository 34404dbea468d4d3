"""The views of a kernel's tree, node by node.

Templates know node kinds (loop, stage, fragment, init, compute, product, combine, write, barrier) and
nothing of operators; everything that needs arithmetic is worked out here and in the files named `*_views`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ekc.codegen.copy_views import cooperative, private
from ekc.codegen.pipeline_views import loop_text, overlapped_view, pipelined_view, shared_stages
from ekc.codegen.scope import Scope
from ekc.codegen.sum_views import combine_view, compute_view, init_view, reduce_view
from ekc.codegen.tensor_views import fragment_text, product_text
from ekc.codegen.view import View
from ekc.codegen.warpgroup_views import group_product_text, waited
from ekc.codegen.write_views import write_view
from ekc.ir.nodes import (
    BarrierNode,
    CombineNode,
    ComputeNode,
    FragmentNode,
    GroupNode,
    InitNode,
    LoopNode,
    MmaNode,
    Node,
    ReduceNode,
    SharedFactor,
    StageNode,
    WaitNode,
    WriteNode,
)


def views(scope: Scope, nodes: Sequence[Node]) -> tuple[View, ...]:
    """The views of nodes in order."""
    return tuple(_view(scope, n) for n in nodes)


def _view(scope: Scope, node: Node) -> View:
    match node:
        case LoopNode() if node.asynchronous:
            return overlapped_view(scope, node, partial(views, scope))
        case LoopNode() if int(node.loop.pipeline) > 1 and shared_stages(node):
            return pipelined_view(scope, node, partial(views, scope))
        case LoopNode():
            return View("loop", loop_text(scope, node), views(scope, node.body))
        case StageNode() if node.buffer.scope == "shared":
            return View("shared_stage", cooperative(scope, node))
        case StageNode():
            return View("register_stage", private(scope, node))
        case FragmentNode():
            return View("fragment", _fragment(scope, node))
        case MmaNode() if isinstance(node.a, SharedFactor):
            return View("product", group_product_text(node, scope.names, scope.rows))
        case MmaNode():
            return View("product", product_text(node, scope.names))
        case GroupNode():
            return View("group", {"wait": waited(scope.kernel, scope.names)}, views(scope, node.body))
        case ReduceNode():
            return reduce_view(scope, node)
        case InitNode():
            return init_view(scope, node)
        case ComputeNode():
            return compute_view(scope, node)
        case CombineNode():
            return combine_view(scope, node)
        case WriteNode():
            return write_view(scope, node)
        case BarrierNode() | WaitNode():
            return View("barrier")


def _fragment(scope: Scope, node: FragmentNode) -> dict[str, Any]:
    name, copy = node.stage.buffer.name, scope.parity.get(node.stage.staging.source, "")
    return fragment_text(node, scope.names, copy, scope.rows.get(name, ""))
