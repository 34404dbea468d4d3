"""Values of a fused graph, computed where they are needed: tensors, or calls that `torch.fx` records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ekc.errors import InvalidInput
from ekc.models.graph import Node
from ekc.models.model import FusedGraph


@dataclass
class ValueTable:
    """Values by name. What is missing is a constant, or the output of a node whose inputs are there."""

    fused: FusedGraph
    make_constant: Callable[[str], Any | None]
    """The constant of a name, or None for a name that is none."""
    apply: Callable[[Node, Sequence[Any]], Any]
    """The output of a node for its inputs."""
    known: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._producers = self.fused.graph.find_producers()
        for step in self.fused.steps:
            for node in (step,) if isinstance(step, Node) else step.nodes:
                self._producers.setdefault(node.output, node)

    def get(self, name: str) -> Any:
        """The value of a name. Raises `InvalidInput` for a constant whose elements are missing."""
        waiting = [name]
        while waiting:
            wanted = waiting[-1]
            if wanted in self.known:
                waiting.pop()
                continue
            constant = self.make_constant(wanted)
            if constant is not None:
                self.known[wanted] = constant
                continue
            if wanted not in self._producers:
                raise InvalidInput(
                    f"{self.fused.graph.name}: the elements of the constant {wanted} are missing"
                )
            node = self._producers[wanted]
            missing = [x for x in node.inputs if x not in self.known]
            waiting += missing
            if not missing:
                self.known[wanted] = self.apply(node, [self.known[x] for x in node.inputs])
        return self.known[name]

    def compute(self, nodes: Iterable[Node]) -> None:
        """Compute the outputs of nodes."""
        for node in nodes:
            self.get(node.output)
