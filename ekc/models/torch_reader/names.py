"""Names of operators, and of the nodes that are made of them: the path of the module."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

from ekc.models.torch_reader.shapes import VIEWS


def packet_of(target: Any) -> str:
    """Name of an operator without library and overload, and without the `_` of one that writes: `conv2d`."""
    name = str(getattr(getattr(target, "overloadpacket", target), "__name__", target))
    return name if name.endswith("__") else name.removesuffix("_")


def name_nodes(nodes: Any) -> dict[Any, str]:
    """Node -> path of its module, with the operator behind it where the module has several."""
    paths: dict[Any, tuple[str, str]] = {}
    for node in nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = str(stack[-1][0]) if stack else ""
        path = path.split("@")[0].removeprefix("L['self']").strip(".")
        paths[node] = (path, packet_of(node.target).strip("_"))
    counts = Counter(path for node, (path, packet) in paths.items() if packet_of(node.target) not in VIEWS)
    seen: Counter[str] = Counter()
    names = {}
    for node, (path, packet) in paths.items():
        alone = counts[path] == 1 and packet_of(node.target) not in VIEWS
        same = path.rpartition(".")[2] == packet
        name = path if path and (alone or same) else f"{path}.{packet}".strip(".")
        seen[name] += 1
        names[node] = name if seen[name] == 1 else f"{name}_{seen[name] - 1}"
    return names
