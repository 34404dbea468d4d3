"""Which nodes are one layer: an anchor, and the elementwise nodes behind it.

A node joins the layer whose result it reads, if that has no other use, and if the node has its shape. Where
it reads the results of two, a sum joins that of its first operand, a product that without an activation: the
gate of the other is then applied where it is used, as in silu(gate) * c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ekc.errors import InvalidInput
from ekc.models.elements import FLOAT_NAMES, POINTWISE_KINDS, find_reason_against
from ekc.models.epilogues import append_nodes
from ekc.models.graph import Graph, Node, describe_internal_error
from ekc.models.layer_operators import ANCHOR_KINDS, plan_layer
from ekc.models.layer_plan import LayerPlan

_GATES = frozenset({"silu", "gelu", "gelu_tanh", "sigmoid", "relu", "tanh"})
_MAX_RECONVERGING_NODES = 24


@dataclass(eq=False)
class LayerGroup:
    """The nodes of a layer, the anchor first."""

    plan: LayerPlan
    nodes: list[Node]

    @property
    def output(self) -> str:
        """The value that the layer computes."""
        return self.nodes[-1].output


@dataclass
class Grouping:
    """The layers of a graph, and the reasons of nodes that cannot be any."""

    graph: Graph
    groups: dict[str, LayerGroup] = field(default_factory=dict)
    """Layers by the value that they compute."""
    inside: dict[str, LayerGroup] = field(default_factory=dict)
    """Output of a node -> its layer."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Output of a node that cannot be a layer -> why."""

    def add_nodes(self) -> None:
        """Put every node that can be in a layer into one."""
        for node in self.graph.nodes:
            if node.output in self.inside:
                continue
            if node.kind in ANCHOR_KINDS:
                self._add_anchor(node)
            elif node.kind in ("elementwise", "cast"):
                self._join(node)
            elif node.kind not in POINTWISE_KINDS:
                reason = node.attributes.get("reason") or f"ekc has no operator for {node.kind}"
                self.reasons[node.output] = str(reason)

    def _add_anchor(self, node: Node) -> None:
        try:
            plan = plan_layer(node, self.graph)
            append_nodes(plan, [node], self.graph)
        except InvalidInput as problem:
            self.reasons[node.output] = str(problem)
            return
        except Exception as problem:
            self.reasons[node.output] = describe_internal_error(problem)
            return
        group = LayerGroup(plan, [node])
        self.groups[node.output] = self.inside[node.output] = group

    def _join(self, node: Node) -> None:
        """Put an elementwise node into the layer before it, if it can be there."""
        found = [x for name in dict.fromkeys(node.inputs) if (x := self._find_open_group(name, node))]
        if not found:
            return
        group, added = found[0] if len(found) == 1 else self._choose_group(node, found)
        others = [other for other, _ in found if other is not group]
        gate = self._find_gate(node, others) if others else None
        if gate is not None and self._try_nodes(group, [*added[:-1], gate, added[-1]]):
            other = self.inside[gate.output]
            del self.groups[other.output]
            other.nodes.pop()
            self.groups[other.output] = other
            self._extend(group, [*added[:-1], gate, added[-1]])
        elif self._try_nodes(group, added):
            self._extend(group, added)

    def _extend(self, group: LayerGroup, added: Sequence[Node]) -> None:
        del self.groups[group.output]
        group.nodes += added
        self.groups[group.output] = group
        self.inside.update((n.output, group) for n in added)

    def _try_nodes(self, group: LayerGroup, added: Sequence[Node]) -> bool:
        """Whether a layer can have these nodes too."""
        values = self.graph.values
        is_refused = any(node.kind != "reshape" and find_reason_against(node, values) for node in added)
        if is_refused or values[added[-1].output].dtype.name not in FLOAT_NAMES:
            return False
        try:
            append_nodes(group.plan, [*group.nodes, *added], self.graph)
        except InvalidInput:
            return False
        except Exception as problem:
            self.reasons[added[-1].output] = describe_internal_error(problem)
            return False
        return True

    def _find_open_group(self, name: str, node: Node) -> tuple[LayerGroup, list[Node]] | None:
        """The layer whose result is this input of a node, seen through reshapes, and the nodes to add to it;
        where the result has several uses that meet again, all nodes until they have met."""
        values = self.graph.values
        views: list[Node] = []
        if values[name].shape != values[node.output].shape:
            return None
        while name not in self.groups:
            producer = self.graph.producers.get(name)
            is_view = producer is not None and producer.kind == "reshape"
            if producer is None or not is_view or self.graph.find_only_user(name) is None:
                return None
            views.insert(0, producer)
            name = producer.inputs[0]
        if self.graph.find_only_user(name) is not None:
            return self.groups[name], [*views, node]
        meeting = [] if views else find_meeting_nodes(name, self.graph)
        return (self.groups[name], meeting) if node in meeting else None

    def _choose_group(
        self, node: Node, found: Sequence[tuple[LayerGroup, list[Node]]]
    ) -> tuple[LayerGroup, list[Node]]:
        if node.attributes.get("function") != "mul":
            return found[0]
        plain = [x for x in found if not any(_is_gate(n) for n in x[0].nodes)]
        return (plain or list(found))[-1]

    def _find_gate(self, node: Node, others: Sequence[LayerGroup]) -> Node | None:
        """The activation that a product takes from the end of another layer."""
        if node.attributes.get("function") != "mul" or len(others) != 1:
            return None
        last = others[0].nodes[-1]
        before = self.graph.values[last.inputs[0]]
        is_alone = self.graph.find_only_user(before.name) is last and len(others[0].nodes) > 1
        return last if _is_gate(last) and is_alone and last.output in node.inputs else None


def _is_gate(node: Node) -> bool:
    return node.attributes.get("function") in _GATES


def find_meeting_nodes(name: str, graph: Graph) -> list[Node]:
    """The elementwise nodes of one shape through which all uses of a value meet in one value again, in order;
    [] where they do not."""
    values, shape = graph.values, graph.values[name].shape
    found: dict[str, Node] = {}
    waiting = {name}
    while len(found) < _MAX_RECONVERGING_NODES:
        if waiting.intersection(graph.outputs):
            return []
        users = {u.output: u for value in waiting for u in graph.users[value] if u.output not in found}
        if not users:
            return []
        first = users[min(users, key=graph.order.__getitem__)]
        if first.kind not in ("elementwise", "cast") or values[first.output].shape != shape:
            return []
        found[first.output] = first
        waiting.add(first.output)
        waiting = {
            v for v in waiting if v in graph.outputs or any(u.output not in found for u in graph.users[v])
        }
        if waiting == {first.output}:
            return list(found.values())
    return []
