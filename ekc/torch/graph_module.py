"""A fused graph as a module of `torch.fx`: operators of ekc for layers with a kernel, functions of PyTorch
for the rest. Its `code` is Python that a user can read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from ekc.errors import InvalidInput
from ekc.models.graph import Node, Value
from ekc.models.model import FusedGraph, LayerCall, LayerInput
from ekc.torch.node_functions import View, apply_node, apply_view, find_torch_dtype

_TAKES_NUMBERS = frozenset(
    {
        "add",
        "sub",
        "mul",
        "div",
        "power",
        "equal",
        "not_equal",
        "less",
        "less_equal",
        "greater",
        "greater_equal",
    }
)
"""Elementwise functions whose second input may be a number of Python."""
CLASS_NAME = "EkcGraph"
"""Name of the class in the code of the module."""


def build_graph_module(
    fused: FusedGraph, operators: Mapping[str, Any], constants: dict[str, torch.Tensor]
) -> fx.GraphModule:
    """Build the module: tensors of `fused.graph.inputs` in, a tuple of those of `fused.graph.outputs` out.

    operators: by the digest of a layer's operator, the operator of PyTorch that computes it. A layer without
        one is computed by functions of PyTorch.
    constants: the constants of the graph by name. They become buffers that `state_dict` leaves out. A weight
        that a kernel reads in another order or type is laid out once, here; a transposed one then has its
        place among the constants.
    """
    builder = _GraphBuilder(fused, constants)
    for step in fused.steps:
        if isinstance(step, Node):
            builder.table.compute([step])
        elif step.op.digest in operators:
            builder.call_operator(step, operators[step.op.digest])
        else:
            builder.table.compute(step.nodes)
    return builder.finish()


class _NamingTracer(fx.proxy.GraphAppendingTracer):  # type: ignore[misc]
    """Names the nodes that it records after the value that is being computed."""

    next_name: str | None = None

    def create_node(
        self, kind: str, target: Any, args: Any, kwargs: Any, name: Any = None, *more: Any
    ) -> Any:
        return super().create_node(kind, target, args, kwargs, name or self.next_name, *more)


class _GraphBuilder:
    """Records the calls of one module."""

    def __init__(self, fused: FusedGraph, constants: dict[str, torch.Tensor]) -> None:
        self.fused, self.constants = fused, constants
        self.graph, self.root = fx.Graph(), torch.nn.Module()
        self.tracer = _NamingTracer(self.graph)
        self.views: dict[tuple[str, tuple[View, ...]], fx.Proxy] = {}
        self.table = ValueTable(fused, self._make_constant, self._apply)
        for name in fused.graph.inputs:
            placeholder = self.graph.placeholder(make_identifier(name))
            self.table.known[name] = fx.Proxy(placeholder, self.tracer)

    def _make_constant(self, name: str) -> fx.Proxy | None:
        return self._add_buffer(name, self.constants[name]) if name in self.constants else None

    def call_operator(self, call: LayerCall, operator: Any) -> None:
        """Record the call of a layer's operator, with the views around it."""
        inputs = [self._get_viewed(source).node for source in call.inputs]
        value = self.fused.graph.values[call.output]
        shape = call.op.outputs[0].shape
        views = [] if shape == value.shape else [("reshape", value.shape)]
        name = make_identifier(call.name)
        recorded = self.graph.create_node("call_function", operator, tuple(inputs), {}, name)
        result = fx.Proxy(recorded, self.tracer)
        self.table.known[call.output] = self._apply_views(result, views, name)
        # A layer that reads the result in the shape of the operator needs no view.
        self.views[call.output, (("reshape", shape),)] = result

    def _get_viewed(self, source: LayerInput) -> fx.Proxy:
        """An input of a layer. A constant is laid out here, once; other views are recorded."""
        key = (source.value, source.views)
        if key in self.views:
            return self.views[key]
        constant = self.constants.get(source.value)
        if constant is None and not source.views:
            return self.table.get(source.value)
        found: fx.Proxy
        if constant is not None:
            tensor = constant
            for view in source.views:
                tensor = apply_view(tensor, view)
            # A kernel reads rows of contiguous elements; a weight that has them keeps the module's memory.
            suffix = "" if tensor is constant and tensor.is_contiguous() else "_laid_out"
            tensor = tensor.contiguous()
            found = self._add_buffer(f"{source.value}{suffix}", tensor)
            if not source.views:
                self.constants[source.value] = tensor
        else:
            name = f"{make_identifier(source.value)}_view"
            found = self._apply_views(self.table.get(source.value), source.views, name)
        self.views[key] = found
        return found

    def _apply_views(self, x: fx.Proxy, views: Iterable[View], name: str) -> fx.Proxy:
        """Record views of a value."""
        self.tracer.next_name = name
        for view in views:
            x = apply_view(x, view)
        self.tracer.next_name = None
        return x

    def _apply(self, node: Node, inputs: Sequence[fx.Proxy]) -> fx.Proxy:
        """Record the functions of one node."""
        values = self.fused.graph.values
        self.tracer.next_name = make_identifier(node.output)
        result = apply_node(node, values, self._write_numbers(node, inputs))
        value = values[node.output]
        wanted = find_torch_dtype(value.dtype.name)
        if node.kind == "elementwise" and _derive_result_dtype(node, values) != wanted:
            result = result.to(wanted)
        self.tracer.next_name = None
        return result

    def _write_numbers(self, node: Node, inputs: Sequence[fx.Proxy]) -> Sequence[Any]:
        """The inputs of a node, constants without dimensions as the numbers that they are, where the function
        takes numbers."""
        if node.attributes.get("function") not in _TAKES_NUMBERS:
            return inputs
        tensors = [self.constants.get(name) for name in node.inputs]
        is_number = [tensor is not None and not tensor.shape for tensor in tensors]
        if all(is_number) or is_number[0]:
            return inputs
        pairs = zip(inputs, tensors, is_number, strict=True)
        return [tensor.item() if number and tensor is not None else proxy for proxy, tensor, number in pairs]

    def _add_buffer(self, name: str, tensor: torch.Tensor) -> fx.Proxy:
        attribute = make_identifier(name)
        while hasattr(self.root, attribute):
            attribute += "_"
        self.root.register_buffer(attribute, tensor)
        return fx.Proxy(self.graph.get_attr(attribute), self.tracer)

    def finish(self) -> fx.GraphModule:
        """The module of all that was recorded."""
        self.graph.output(tuple(self.table.get(name).node for name in self.fused.graph.outputs))
        restore_linear_calls(self.graph, self.root)
        self.graph.eliminate_dead_code()
        self.graph.lint()
        module = fx.GraphModule(self.root, self.graph, CLASS_NAME)
        for name, _ in list(module.named_buffers()):
            module.register_buffer(name, module.get_buffer(name), persistent=False)
        return module


def _derive_result_dtype(node: Node, values: Mapping[str, Value]) -> torch.dtype:
    """The type that PyTorch gives the result of a node."""
    inputs = [values[name] for name in node.inputs]
    tensors = [torch.empty(x.shape, dtype=find_torch_dtype(x.dtype.name), device="meta") for x in inputs]
    found: torch.dtype = apply_node(node, values, tensors).dtype
    return found


def make_identifier(name: str) -> str:
    """A name of Python made of the name of a value: "layer1.0.conv" gives "layer1_0_conv"."""
    text = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    return text if text and not text[0].isdigit() else f"value_{text}"


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
        self._producers = dict(self.fused.graph.producers)
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


def restore_linear_calls(graph: fx.Graph, root: torch.nn.Module) -> None:
    """Replace `matmul(x, weight) + bias`, where the weight is a transposed view, by `linear(x, weight.T,
    bias)`, which PyTorch computes in one kernel. The reader of a module had taken it to pieces."""
    for node in list(graph.nodes):
        weight = _find_transposed_weight(node, root)
        if weight is None:
            continue
        last, bias = node, None
        if len(node.users) == 1:
            (user,) = node.users
            other = _find_addend(user, node)
            if other is not None and _find_shape(other, root) == (weight.shape[0],):
                last, bias = user, other
        attribute = f"{node.args[1].target}_transposed"
        root.register_buffer(attribute, weight)
        with graph.inserting_before(last):
            read = graph.get_attr(attribute)
            made = graph.create_node("call_function", F.linear, (node.args[0], read, bias), {}, node.name)
        last.replace_all_uses_with(made)
        for old in dict.fromkeys((last, node)):
            graph.erase_node(old)


def _find_transposed_weight(node: fx.Node, root: torch.nn.Module) -> torch.Tensor | None:
    """The weight of a product as `linear` takes it; None for any other node."""
    if node.op != "call_function" or node.target is not torch.matmul:
        return None
    source = node.args[1]
    if len(_find_shape(source, root) or ()) != 2:
        return None
    weight: torch.Tensor = getattr(root, str(source.target)).T
    return weight if weight.is_contiguous() else None


def _find_addend(node: fx.Node, product: fx.Node) -> fx.Node | None:
    """The value that is added to a product; None where the node is no sum of two values."""
    if node.op != "call_function" or node.target is not torch.add or node.args[0] is not product:
        return None
    return node.args[1] if isinstance(node.args[1], fx.Node) else None


def _find_shape(node: Any, root: torch.nn.Module) -> tuple[int, ...] | None:
    """The shape of a weight; None for other nodes."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    return tuple(getattr(root, str(node.target)).shape)
