"""Plans of layers: the operator of a node, and where it has its inputs from; those of matrix products.

Views are traced back to what is in memory, broadcast batches are folded into rows:

queries [1, 32, 512, 128] times keys [1, 8 (4 heads share one), 128, 512]
-> batch_matmul(b=8, m=4 * 512, n=512, k=128)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import prod

import numpy as np

from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.ir.operators import batch_matmul, matmul, matvec
from ekc.models.elements import (
    FLOAT_NAMES,
    Dimension,
    Factor,
    describe_type,
    is_dense,
    list_views,
    trace_view,
)
from ekc.models.graph import Graph, Node, Value
from ekc.models.model import LayerInput


def find_dense_source(graph: Graph, name: str) -> str:
    """The value, or the one that it is a mere reshape of."""
    names = list_views(name, graph)
    for source in reversed(names):
        dims = trace_view(names, source, graph)
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


@dataclass(frozen=True)
class _Operand:
    """A factor of a product, as strides into a value in memory."""

    source: str
    size: int
    """Elements of the source."""
    moved_bytes: int
    """Bytes to write before the source is in memory; 0 where it is there anyway."""
    batch: tuple[Dimension, ...]
    outer: Dimension
    """The rows of a, the columns of b."""
    summed: Dimension


@dataclass(frozen=True)
class _Layout:
    """Extents of a product, and how its operands are stored."""

    b: int
    m: int
    n: int
    k: int
    a_source: str
    b_source: str
    transpose_a: bool
    transpose_b: bool


def plan_matmul(node: Node, graph: Graph) -> LayerPlan:
    """The operator of a matmul node: matmul, batch_matmul, or matvec where there is one row or one column."""
    a, b = (graph.values[name] for name in node.inputs)
    dtype = check_operand_types(a, b)
    batch = graph.values[node.output].shape[:-2]
    first = list(_list_operands(graph, node.inputs[0], batch, is_left=True))
    second = list(_list_operands(graph, node.inputs[1], batch, is_left=False))
    pairs = sorted(
        ((x, y) for x in first for y in second), key=lambda pair: pair[0].moved_bytes + pair[1].moved_bytes
    )
    layout = next((found for x, y in pairs if (found := _match_operands(x, y)) is not None), None)
    if layout is None:
        raise InvalidInput("batch dimensions that broadcast in both operands")
    return _make_plan(layout, graph, dtype)


def _list_operands(graph: Graph, name: str, batch: tuple[int, ...], *, is_left: bool) -> Iterator[_Operand]:
    """The operand as seen from each value that it is a view of, from the one in memory on."""
    names = list_views(name, graph)
    for source in reversed(names):
        dims = trace_view(names, source, graph)
        if dims is None:
            continue
        shape, value = graph.values[name].shape, graph.values[source]
        own = dims[:-2]
        known = (*((),) * (len(batch) - len(own)), *own)
        extents = (*(1,) * (len(batch) - len(own)), *shape[:-2])
        spread = tuple(
            d if e == extent else ((extent, 0),) for d, e, extent in zip(known, extents, batch, strict=True)
        )
        outer, summed = (dims[-2], dims[-1]) if is_left else (dims[-1], dims[-2])
        moved = 0 if source == names[-1] else value.bytes
        yield _Operand(source, value.size, moved, spread, outer, summed)


def _match_operands(a: _Operand, b: _Operand) -> _Layout | None:
    """Batch, rows, columns and sums of a product of operands that lie in memory row by row; None where they
    do not."""
    factors = _refine(list(chain.from_iterable(a.batch)), list(chain.from_iterable(b.batch)))
    if factors is None:
        return None
    rows: list[Factor] = list(a.outer)
    while factors and factors[-1][2] == 0:
        size, stride, _ = factors.pop()
        rows.insert(0, (size, stride))
    batch_a, batch_b = [(e, s) for e, s, _ in factors], [(e, s) for e, _, s in factors]
    if any(s == 0 for _, s in (*batch_a, *batch_b)):
        return None
    transposed_a = _find_transpose(batch_a, rows, a.summed, a.size)
    transposed_b = _find_transpose(batch_b, b.summed, b.outer, b.size)
    if transposed_a is None or transposed_b is None:
        return None
    extents = (_size(batch_a), _size(rows), _size(b.outer), _size(a.summed))
    return _Layout(*extents, a.source, b.source, transposed_a, transposed_b)


def _size(factors: Sequence[Factor]) -> int:
    return prod(e for e, _ in factors)


def _refine(a: list[Factor], b: list[Factor]) -> list[tuple[int, int, int]] | None:
    """Two lists of factors cut at the same places: extent, stride in a, stride in b."""
    a, b, found = list(a), list(b), []
    while a and b:
        (size_a, stride_a), (size_b, stride_b) = a.pop(0), b.pop(0)
        size = min(size_a, size_b)
        if max(size_a, size_b) % size:
            return None
        left_a, left_b = size_a // size, size_b // size
        found.append((size, stride_a * left_a, stride_b * left_b))
        if left_a > 1:
            a.insert(0, (left_a, stride_a))
        if left_b > 1:
            b.insert(0, (left_b, stride_b))
    return found


def _find_transpose(
    batch: Sequence[Factor], rows: Sequence[Factor], columns: Sequence[Factor], size: int
) -> bool | None:
    """Whether a matrix is stored column by column; None where it is stored neither way."""
    if is_dense((*batch, *rows, *columns), size):
        return False
    return True if is_dense((*batch, *columns, *rows), size) else None


def _make_plan(x: _Layout, graph: Graph, dtype: str) -> LayerPlan:
    if x.b == 1 and (plan := _plan_matvec(x, graph, dtype)) is not None:
        return plan
    shape_a = (x.k, x.m) if x.transpose_a else (x.m, x.k)
    shape_b = (x.n, x.k) if x.transpose_b else (x.k, x.n)
    batch = (x.b,) if x.b > 1 else ()
    inputs = (
        _read_matrix(graph, x.a_source, (*batch, *shape_a)),
        _read_matrix(graph, x.b_source, (*batch, *shape_b)),
    )
    make = partial(
        partial(batch_matmul, x.b) if batch else matmul,
        x.m,
        x.n,
        x.k,
        dtype=dtype,
        transpose_a=x.transpose_a,
        transpose_b=x.transpose_b,
    )
    return LayerPlan(lambda out: make(out_dtype=out), inputs)


def _plan_matvec(x: _Layout, graph: Graph, dtype: str) -> LayerPlan | None:
    """A product of one row or one column with a matrix that is stored, or as a constant can be stored, with
    the summed dimension last."""
    if x.m == 1:
        rows, matrix, vector, is_turned = x.n, x.b_source, x.a_source, not x.transpose_b
    elif x.n == 1:
        rows, matrix, vector, is_turned = x.m, x.a_source, x.b_source, x.transpose_a
    else:
        return None
    if is_turned and not graph.values[matrix].is_constant:
        return None
    found = _read_matrix(graph, matrix, (x.k, rows) if is_turned else (rows, x.k))
    if is_turned:
        found = LayerInput(found.value, (*found.views, ("permute", (1, 0))))
    inputs = (found, _read_matrix(graph, vector, (x.k,)))
    return LayerPlan(lambda out: matvec(rows, x.k, dtype=dtype, out_dtype=out), inputs)


def _read_matrix(graph: Graph, source: str, shape: tuple[int, ...]) -> LayerInput:
    return LayerInput(source, () if graph.values[source].shape == shape else (("reshape", shape),))
