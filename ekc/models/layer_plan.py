"""Plans of layers: the operator of a node, and where it has its inputs from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from math import prod

import numpy as np

from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.models.elements import FLOAT_NAMES, describe_type
from ekc.models.graph import Graph, Value
from ekc.models.model import LayerInput
from ekc.models.views import find_view_chain, is_dense


def find_dense_source(graph: Graph, name: str) -> str:
    """The value, or the one that it is a mere reshape of."""
    names = find_view_chain(name, graph.producers)
    for source in reversed(names.names):
        dims = names.trace_from(source, graph.producers, graph.values)
        if dims is not None and is_dense(tuple(chain.from_iterable(dims)), graph.values[source].size):
            return source
    return name


def read_dense(graph: Graph, name: str, shape: tuple[int, ...], dtype: str | None = None) -> LayerInput:
    """The elements of a value in order, as an input of a shape; constants are cast to `dtype`."""
    return make_input(graph.values[find_dense_source(graph, name)], shape, dtype)


def make_input(value: Value, shape: tuple[int, ...], dtype: str | None = None) -> LayerInput:
    """A value reshaped, and cast where a type is given."""
    views: tuple[tuple[str, object], ...] = () if value.shape == shape else (("reshape", shape),)
    if dtype is not None and value.dtype.name != dtype:
        views += (("cast", dtype),)
    return LayerInput(value.name, views)


@dataclass(frozen=True)
class LayerPlan:
    """The operator of a node before anything is fused into it."""

    make_operator: Callable[[str | None], Operator]
    """The operator for a type of its result; None is the default type."""
    inputs: tuple[LayerInput, ...]
    bias: str | None = None
    """A constant of one element per channel that the result needs added."""
    constants: tuple[tuple[str, np.ndarray[tuple[int], np.dtype[np.float32]]], ...] = ()
    """Constants that the graph does not have, by the names that the inputs use."""


def check_float(value: Value) -> str:
    """The name of a value's element type; `InvalidInput` for one that ekc does not compute."""
    if value.dtype.name not in FLOAT_NAMES:
        raise InvalidInput(describe_type(value.dtype.name))
    if not value.size:
        raise InvalidInput("a tensor without elements")
    return value.dtype.name


def check_operand_types(a: Value, b: Value) -> str:
    """The name of the type of two factors: one of floats, or int8."""
    for value in (a, b):
        if value.dtype.name not in FLOAT_NAMES | {"int8"}:
            raise InvalidInput(describe_type(value.dtype.name))
    if a.dtype != b.dtype:
        raise InvalidInput(
            f"operands of two types, {a.dtype} and {b.dtype}: ekc multiplies those of one type"
        )
    if not prod(a.shape) or not prod(b.shape):
        raise InvalidInput("a tensor without elements")
    return str(a.dtype.name)
