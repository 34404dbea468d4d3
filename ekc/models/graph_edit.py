"""Changes to a graph: nodes replaced, values renamed, constants added; unused nodes are left out at last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ekc.models.graph import Graph, Node, Value


@dataclass
class GraphEdit:
    """A graph while it is rewritten: the nodes written so far, and the values that stand for others."""

    graph: Graph
    values: dict[str, Value] = field(init=False)
    nodes: list[Node] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    """Value -> the value that replaces it."""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = dict(self.graph.values)

    def read_nodes(self) -> Iterator[Node]:
        """The nodes of the old graph, with the replaced inputs."""
        for node in self.graph.nodes:
            yield replace(node, inputs=tuple(self.find_replacement(name) for name in node.inputs))

    def find_replacement(self, name: str) -> str:
        """The value that replaces a value, itself where none does."""
        while name in self.aliases:
            name = self.aliases[name]
        return name

    def add_value(
        self,
        stem: str,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        *,
        is_constant: bool = False,
        data: np.ndarray[Any, Any] | None = None,
    ) -> str:
        """A value under a name that is free and begins with `stem`; returns the name."""
        name, number = stem, 2
        while name in self.values:
            name, number = f"{stem}_{number}", number + 1
        self.values[name] = Value(name, tuple(shape), dtype, is_constant, data)
        return name

    def add_node(self, kind: str, name: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Write a node; returns its output."""
        self.nodes.append(Node(kind, name, tuple(inputs), output, attributes))
        return output

    def add_step(
        self,
        kind: str,
        node: Node,
        inputs: Sequence[str],
        shape: Sequence[int],
        dtype: np.dtype[Any],
        **attributes: Any,
    ) -> str:
        """Write a node under the name of another one, with a new output; returns the output."""
        output = self.add_value(f"{node.output}.{kind}", shape, dtype)
        return self.add_node(kind, node.name, inputs, output, **attributes)

    def finish(self) -> Graph:
        """The graph of the nodes that were written, those without a use left out."""
        outputs = tuple(self.find_replacement(name) for name in self.graph.outputs)
        needed, kept = set(outputs), []
        for node in reversed(self.nodes):
            if node.output in needed:
                inputs = tuple(self.find_replacement(name) for name in node.inputs)
                needed.update(inputs)
                kept.append(replace(node, inputs=inputs))
        needed.update(self.graph.inputs)
        return replace(
            self.graph,
            values={name: value for name, value in self.values.items() if name in needed},
            nodes=tuple(reversed(kept)),
            outputs=outputs,
            notes=(*self.graph.notes, *self.notes),
        )
