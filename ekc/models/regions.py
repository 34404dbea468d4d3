"""Elementwise nodes and moves that are one operator: each reads some tensors and writes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.compute import TensorSpec
from ekc.ir.compute_builder import make_compute
from ekc.ir.dtypes import parse_dtype
from ekc.ir.operator import Operator
from ekc.models.elements import READABLE_NAMES, ElementWriter, check_read_count, squeeze_index, squeeze_shape
from ekc.models.graph import Node, Value
from ekc.models.views import Index

_MAX_READS = 60
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

    check_read_count(root.output, nodes, _MAX_READS)
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
            merged[tensor] = (_drop_index(shape, load, ex.Var(a), shape), dtype)
        sizes = {tensor: shape for tensor, (shape, _) in specs.items()}

        def change(load: ex.Load, a: str = a, sizes: dict[str, tuple[int, ...]] = sizes) -> ex.Expr:
            places = [d for d, i in enumerate(load.index) if i == ex.Var(a)]
            kept = tuple(i for d, i in enumerate(load.index) if d not in places)
            return replace(load, index=kept)

        body, specs = ex.replace_loads(body, change), merged
        extents = {n: e * extents[a] if n == b else e for n, e in extents.items() if n != a}
    return body, extents, specs


def _drop_index(
    shape: tuple[int, ...], load: ex.Load, axis: ex.Var, sizes: tuple[int, ...]
) -> tuple[int, ...]:
    """The shape with the dimension along `axis` merged into the next."""
    places = [d for d, i in enumerate(load.index) if i == axis]
    if not places:
        return shape
    d = places[0]
    return (*shape[:d], sizes[d] * sizes[d + 1], *shape[d + 2 :])


def _are_always_together(body: ex.Expr, a: str, b: str, specs: Specs, extents: Mapping[str, int]) -> bool:
    """Whether every read has the two axes side by side over whole dimensions, or neither of them."""
    used = _find_value_variables(body)
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
        pair = (ex.Var(a), ex.Var(b))
        if len(places) != 2 or places[1] != places[0] + 1:
            return False
        if tuple(load.index[d] for d in places) != pair:
            return False
        if tuple(shape[d] for d in places) != (extents[a], extents[b]):
            return False
    return True


def _find_value_variables(e: ex.Expr) -> frozenset[str]:
    """Axes that are values in an expression, and not only indices of reads."""
    if isinstance(e, ex.Load):
        return frozenset()
    if isinstance(e, ex.Var):
        return frozenset({e.name})
    return frozenset().union(*map(_find_value_variables, ex.children(e)))


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
    acc = "float32"
    compute = make_compute(
        "Y", lambda: body, extents, {}, list(specs), "sum", parse_dtype(out_dtype), acc, out_dtype
    )
    return Operator(name, inputs, (compute,))
