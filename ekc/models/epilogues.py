"""Elementwise nodes as operators: those behind a layer as its epilogue, others, with moves, as operators of
their own, which read some tensors and write one.

Inputs have names by what they do, so that equal layers of two readers are equal operators: `bias`, a constant
that is added; `shortcut` and `before`, the residual of a convolution and of other layers; `scale`, `gate`,
`mask`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.compute import TensorSpec
from ekc.ir.compute_builder import make_compute
from ekc.ir.dtypes import parse_dtype
from ekc.ir.operator import Operator
from ekc.models.elements import (
    FLOAT_NAMES,
    READABLE_NAMES,
    ElementWriter,
    Index,
    broadcast_index,
    check_read_count,
    map_index,
    squeeze_index,
    squeeze_shape,
)
from ekc.models.graph import Graph, Node, Value
from ekc.models.layer_plan import LayerPlan, find_dense_source, make_input
from ekc.models.model import LayerInput

MAX_INPUTS = 8
"""Most tensors that an epilogue reads beside the result."""
_MAX_READS = 40


@dataclass
class _Operand:
    """A tensor that an epilogue reads."""

    name: str
    """Name of the operator's input."""
    value: str
    shape: tuple[int, ...]
    index: tuple[ex.Expr, ...]


@dataclass
class _Chain:
    """The nodes of a layer from its anchor on, while their expression is written."""

    plan: LayerPlan
    nodes: Sequence[Node]
    graph: Graph
    op: Operator
    operands: list[_Operand] = field(default_factory=list)
    roles: dict[str, str] = field(default_factory=dict)
    """Value -> the name of an input for it."""

    @property
    def result(self) -> TensorSpec:
        """The operator's result."""
        return self.op.outputs[0]

    @property
    def axes(self) -> dict[str, int]:
        """Axes of the epilogue, as `Operator.epilogue` names them."""
        return {f"{a.name}_out": a.extent for a in self.op.computes[-1].spatial_axes}

    def write(self, elements: Mapping[str, ex.Expr] | None) -> ex.Expr:
        """The body: of elements by the name of the input and of the result; None collects the operands."""
        anchor, output = self.nodes[0].output, self.nodes[-1].output
        variables = tuple(ex.Var(a) for a in self.axes)
        own: ex.Expr = ex.Load(self.result.name, variables)
        own = own if elements is None else elements[self.result.name]
        inside = frozenset(node.output for node in self.nodes[1:])

        def read(name: str, index: Index) -> ex.Expr:
            if name != anchor:
                return self._read_operand(name, index, elements)
            if self.plan.bias is None:
                return own
            return own + self._read_bias(index, elements)

        results = {anchor}
        for node in self.nodes[1:]:
            results |= {node.output} if results.intersection(node.inputs) else set()
        writer = ElementWriter(self.graph.values, self.graph.producers, inside, read, frozenset(results))
        narrow: Index = tuple(v if e > 1 else 0 for v, e in zip(variables, self.result.shape, strict=True))
        start = map_index(narrow, self.result.shape, self.graph.values[output].shape)
        return ex.as_expr(writer.write(output, start))

    def _read_bias(self, index: Index, elements: Mapping[str, ex.Expr] | None) -> ex.Expr:
        assert self.plan.bias is not None
        return self._read_operand(self.plan.bias, (index[1],), elements)

    def _read_operand(self, name: str, index: Index, elements: Mapping[str, ex.Expr] | None) -> ex.Expr:
        values, role, shape = self.graph.values, self.roles.get(name, "other"), self.graph.values[name].shape
        source = find_dense_source(self.graph, name)
        while (node := self.graph.producers.get(source)) is not None and node.kind in ("permute", "expand"):
            index = map_index(index, shape, values[source].shape)
            shape = values[node.inputs[0]].shape
            if node.kind == "expand":
                index = broadcast_index(index, shape)
            else:
                places = dict(zip(node.attributes["order"], index, strict=True))
                index = tuple(places[d] for d in range(len(shape)))
            name = node.inputs[0]
            source = find_dense_source(self.graph, name)
        at = squeeze_index(index, shape)
        found = next((x for x in self.operands if x.value == source and x.index == at), None)
        if found is None:
            found = _Operand(self._make_name(role), source, squeeze_shape(shape), at)
            self.operands.append(found)
        return ex.Load(found.name, at) if elements is None else elements[found.name]

    def _make_name(self, role: str) -> str:
        taken = {x.name for x in self.operands} | {*self.op.tensors}
        name, number = role, 2
        while name in taken:
            name, number = f"{role}_{number}", number + 1
        return name


def append_nodes(plan: LayerPlan, nodes: Sequence[Node], graph: Graph) -> tuple[Operator, list[LayerInput]]:
    """The operator of `nodes`, the anchor first, and the inputs behind those of the plan.

    Raises `InvalidInput` where the nodes are no epilogue.
    """
    output = graph.values[nodes[-1].output].dtype.name
    if plan.bias is None and all(node.kind in ("cast", "reshape") for node in nodes[1:]):
        op = plan.make_operator(None)
        return (op if op.outputs[0].dtype.name == output else plan.make_operator(output)), []
    check_read_count(nodes[-1].output, nodes[1:], _MAX_READS)
    chain = _Chain(plan, nodes, graph, plan.make_operator(None))
    chain.roles.update(_choose_roles(chain))
    body = chain.write(None)
    result, axes = chain.result, chain.axes
    element = result.dtype.name if result.dtype.name in FLOAT_NAMES else output
    _check_operands(chain, element)
    out = None if output == result.dtype.name else output
    found = {x.name: _derive_broadcast_shape(x, axes, result.shape) for x in chain.operands}
    shapes = {name: shape for name, shape in found.items() if shape is not None}
    needs_index = any(node.attributes.get("function") == "causal_mask" for node in nodes)
    if needs_index or len(shapes) < len(found):
        shapes = {x.name: x.shape for x in chain.operands}
        op = chain.op.then(
            f"{result.name}_out", axes=axes, inputs=shapes, body=lambda: body, dtype=element, out_dtype=output
        )
        op = replace(op, name=f"{chain.op.name}_epilogue")
    else:
        op = chain.op.epilogue(_make_body(chain, shapes), out_dtype=out, **shapes)
    inputs = [
        make_input(graph.values[x.value], t.shape, element)
        for x, t in zip(chain.operands, op.inputs[len(chain.op.inputs) :], strict=True)
    ]
    return op, inputs


def _make_body(chain: _Chain, shapes: Mapping[str, Any]) -> Any:
    """The function that `Operator.epilogue` calls with elements."""

    def body(*elements: ex.Expr, **more: ex.Expr) -> ex.Expr:
        return chain.write({chain.result.name: elements[0], **more})

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in (chain.result.name, *shapes)]
    body.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return body


def _check_operands(chain: _Chain, element: str) -> None:
    if len(chain.operands) > MAX_INPUTS:
        raise InvalidInput(f"an epilogue of {len(chain.operands)} inputs; ekc fuses {MAX_INPUTS}")
    for operand in chain.operands:
        value = chain.graph.values[operand.value]
        if value.dtype.name != element and not value.is_constant:
            raise InvalidInput(f"an epilogue of {element} with an input of {value.dtype.name}")


def _derive_broadcast_shape(
    operand: _Operand, axes: Mapping[str, int], result: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The shape that broadcasts an operand as its index does; None where no shape does."""
    names = list(axes)
    if prod(operand.shape) == 1:
        return (1,)
    places = []
    for index, extent in zip(operand.index, operand.shape, strict=True):
        if not isinstance(index, ex.Var) or axes[index.name] != extent:
            return None
        places.append(names.index(index.name))
    if places != sorted(set(places)):
        return None
    if prod(operand.shape) == prod(result):
        return result
    return tuple(e if d in places else 1 for d, e in enumerate(result) if d >= places[0])


def _choose_roles(chain: _Chain) -> dict[str, str]:
    """The name of the input for each value that the nodes read."""
    values, inside = chain.graph.values, {node.output for node in chain.nodes}
    roles = {} if chain.plan.bias is None else {chain.plan.bias: "bias"}
    residual = "shortcut" if chain.nodes[0].kind in ("conv", "conv_transpose") else "before"
    for node in chain.nodes[1:]:
        function = node.attributes.get("function")
        for place, name in enumerate(node.inputs):
            value = values[name]
            if name in inside or name in roles:
                continue
            if function in ("add", "sub"):
                is_full = value.size == values[node.output].size
                width = prod(values[node.output].shape[-1:])
                is_mask = value.size > width and chain.nodes[0].kind == "matmul"
                roles[name] = (
                    ("mask" if is_mask else "bias")
                    if value.is_constant
                    else (residual if is_full else "mask")
                )
            elif function in ("mul", "div"):
                roles[name] = "scale" if value.is_constant else "gate"
            elif function == "where" and place == 0:
                roles[name] = "mask"
            elif len(node.inputs) == 1:
                roles[name] = "gate"
    return roles


_MAX_REGION_READS = 60
"""Most reads of an expression, so that its kernel stays of a size that compiles."""


@dataclass(frozen=True)
class PointwiseOperator:
    """An operator of pointwise nodes, and the values that it reads, in the order of its inputs."""

    op: Operator
    reads: tuple[str, ...]


def build_region(
    root: Node, nodes: Sequence[Node], values: Mapping[str, Value], producers: Mapping[str, Node]
) -> PointwiseOperator:
    """The operator that computes the output of `root` by all of `nodes`.

    Raises `InvalidInput` where ekc has no such operator.
    """
    output = values[root.output]
    names = [f"i{d}" if e > 1 else "" for d, e in enumerate(output.shape)]
    index: Index = tuple(ex.Var(n) if n else 0 for n in names)
    extents = {n: e for n, e in zip(names, output.shape, strict=True) if n} or {"one": 1}
    tensors: dict[str, str] = {}

    def read(name: str, at: Index) -> ex.Load:
        tensor = tensors.setdefault(name, f"X{len(tensors)}")
        return ex.Load(tensor, squeeze_index(at, values[name].shape))

    check_read_count(root.output, nodes, _MAX_REGION_READS)
    writer = ElementWriter(values, producers, frozenset(n.output for n in nodes), read)
    body = ex.as_expr(writer.write(root.output, index))
    if not tensors:
        raise InvalidInput("a tensor of numbers that no input decides")
    specs = {
        tensor: (squeeze_shape(values[name].shape), choose_read_type(values[name], output.dtype))
        for name, tensor in tensors.items()
    }
    body, extents, specs = _merge_axes(body, extents, specs)
    body, extents = _number_axes(body, extents)
    op = _make_operator(_name_region(nodes), body, extents, specs, output.dtype.name)
    return PointwiseOperator(op, tuple(tensors))


def choose_read_type(value: Value, result: np.dtype[Any]) -> str:
    """The type that an operator reads a value as: its own, or that of the result for a constant of another
    kind."""
    name = value.dtype.name
    if name in READABLE_NAMES:
        return name
    if not value.is_constant:
        raise InvalidInput(f"{value.name} is of type {name}, which ekc does not read")
    return result.name


Specs = dict[str, tuple[tuple[int, ...], str]]


def _merge_axes(
    body: ex.Expr, extents: dict[str, int], specs: Specs
) -> tuple[ex.Expr, dict[str, int], Specs]:
    """Neighbouring axes as one wherever every tensor is read along both or along neither, so that models of
    other leading dimensions have equal operators."""
    names = list(extents)
    for a, b in pairwise(names):
        if a not in extents or not _are_always_together(body, a, b, specs, extents):
            continue
        merged: Specs = {}
        for tensor, (shape, dtype) in specs.items():
            load = next(x for x in ex.find_loads(body) if x.tensor == tensor)
            merged[tensor] = (_merge_dimension(shape, load, ex.Var(a)), dtype)

        def change(load: ex.Load, a: str = a) -> ex.Expr:
            return replace(load, index=tuple(i for i in load.index if i != ex.Var(a)))

        body, specs = ex.replace_loads(body, change), merged
        extents = {n: e * extents[a] if n == b else e for n, e in extents.items() if n != a}
    return body, extents, specs


def _merge_dimension(shape: tuple[int, ...], load: ex.Load, axis: ex.Var) -> tuple[int, ...]:
    """The shape with the dimension along `axis` merged into the next."""
    if axis not in load.index:
        return shape
    d = load.index.index(axis)
    return (*shape[:d], shape[d] * shape[d + 1], *shape[d + 2 :])


def _are_always_together(body: ex.Expr, a: str, b: str, specs: Specs, extents: Mapping[str, int]) -> bool:
    """Whether every read has the two axes side by side over whole dimensions, or neither of them."""
    used = _list_value_variables(body)
    if used & {a, b}:
        return False
    patterns: dict[str, tuple[int, ...]] = {}
    for load in ex.find_loads(body):
        own = [ex.find_variables(i) for i in load.index]
        places = tuple(d for d, names in enumerate(own) if names & {a, b})
        if patterns.setdefault(load.tensor, places) != places:
            return False
        if not places:
            continue
        shape = specs[load.tensor][0]
        found = [(load.index[d], shape[d]) for d in places]
        if found != [(ex.Var(a), extents[a]), (ex.Var(b), extents[b])] or places[1] != places[0] + 1:
            return False
    return True


def _list_value_variables(e: ex.Expr) -> frozenset[str]:
    """Axes that are values in an expression, and not only indices of reads."""
    if isinstance(e, ex.Load):
        return frozenset()
    if isinstance(e, ex.Var):
        return frozenset({e.name})
    return frozenset().union(*map(_list_value_variables, ex.children(e)))


def _number_axes(body: ex.Expr, extents: Mapping[str, int]) -> tuple[ex.Expr, dict[str, int]]:
    """Axes named by their position, whatever dimensions of 1 there were."""
    names = {old: f"p{d}" for d, old in enumerate(extents)}
    body = ex.substitute(body, {old: ex.Var(new) for old, new in names.items()})
    return body, {names[old]: e for old, e in extents.items()}


def _name_region(nodes: Sequence[Node]) -> str:
    """The name of the operator: elementwise, or that of its most telling move."""
    kinds = {node.kind for node in nodes}
    order = ("elementwise", "concat", "resize", "pad", "cast", "slice", "permute", "expand")
    return next((kind for kind in order if kind in kinds), "copy")


def _make_operator(
    name: str, body: ex.Expr, extents: Mapping[str, int], specs: Specs, out_dtype: str
) -> Operator:
    inputs = tuple(TensorSpec(t, shape, parse_dtype(dtype)) for t, (shape, dtype) in specs.items())
    compute = make_compute(
        "Y", lambda: body, extents, {}, list(specs), "sum", parse_dtype(out_dtype), "float32", out_dtype
    )
    return Operator(name, inputs, (compute,))
