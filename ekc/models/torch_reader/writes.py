"""Writes to tensors, such as `relu_`: those that can be read as if they gave a new tensor.

Most programs have no other writes, and are read as torch.export gives them. All others are made functional by
PyTorch first, which takes as long as the export.
"""

from __future__ import annotations

import operator
from typing import Any

from ekc.models.torch_reader import contractions, elementwise, reductions
from ekc.models.torch_reader.names import packet_of

MAY_SHARE = frozenset({"to", "_to_copy", "type_as", "fill", *elementwise.DROPOUT})
NEW_TENSORS = frozenset({*contractions.HANDLERS, *elementwise.HANDLERS, *reductions.HANDLERS} - MAY_SHARE)
"""Operators whose result is in memory of its own. What the schemas say is not enough: in inference `dropout`
gives its input."""


def needs_functional(exported: Any) -> bool:
    """Whether a program has writes that others may see, or graphs of its own inside."""
    nodes = [node for node in exported.graph_module.graph.nodes if node.op != "placeholder"]
    if any(node.op == "get_attr" for node in nodes):
        return True
    places = {node: place for place, node in enumerate(nodes)}
    calls = [node for node in nodes if node.op == "call_function"]
    return any(not is_plain(node) and not is_private_write(node, places) for node in calls)


def is_plain(node: Any) -> bool:
    """Whether a call only reads its tensors."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return bool(node.target is operator.getitem or is_number(node))
    return not schema.is_mutable


def is_number(node: Any) -> bool:
    """Whether a call gives a number, of sizes for example."""
    return getattr(node.target, "__module__", "") in ("_operator", "math") and "val" in node.meta


def is_private_write(node: Any, places: dict[Any, int]) -> bool:
    """Whether nothing else sees what a call writes: its first tensor is in memory of its own, has no views,
    and is not read later."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not node.args or not str(schema.name).endswith("_"):
        return False
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    tensor = node.args[0]
    if written != [schema.arguments[0].name] or tensor not in places:
        return False
    if packet_of(tensor.target) not in NEW_TENSORS or count_reads(node, tensor) != 1:
        return False
    others = [user for user in tensor.users if user is not node]
    return all(
        places.get(user, len(places)) < places[node] and packet_of(user.target) in NEW_TENSORS
        for user in others
    )


def count_reads(node: Any, tensor: Any) -> int:
    """How often a call has a tensor among its arguments."""
    return sum(argument is tensor for argument in (*node.args, *node.kwargs.values()))
