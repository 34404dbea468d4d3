"""One element of a value as an expression of elements of others: elementwise functions and moves together.

Views are strides into the value below them. A dimension is a list of factors (extent, stride): a dimension of
32 heads, 4 of which share a key, is ((8, 4096), (4, 0)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.models.functions import FUNCTIONS
from ekc.models.graph import Graph, Node, Value

Factor = tuple[int, int]
"""Extent and stride in elements."""
Dimension = tuple[Factor, ...]
Index = tuple[ex.Operand, ...]
TRACED_KINDS = ("reshape", "permute", "expand")


def make_dense_dimensions(shape: Sequence[int]) -> tuple[Dimension, ...]:
    """The dimensions of a tensor stored row by row."""
    strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
    return tuple(((e, s),) if e > 1 else () for e, s in zip(shape, strides, strict=True))


def apply_view(dims: tuple[Dimension, ...], node: Node, shape: Sequence[int]) -> tuple[Dimension, ...] | None:
    """The dimensions behind a view node; None for a reshape that would have to copy."""
    if node.kind == "permute":
        return tuple(dims[d] for d in node.attributes["order"])
    if node.kind == "expand":
        added = len(shape) - len(dims)
        known = (*((),) * added, *dims)
        return tuple(
            d if prod(e for e, _ in d) == extent else ((extent, 0),)
            for d, extent in zip(known, shape, strict=True)
        )
    return split_factors(list(chain.from_iterable(dims)), shape)


def split_factors(factors: Sequence[Factor], shape: Sequence[int]) -> tuple[Dimension, ...] | None:
    """Factors distributed over the dimensions of a shape; None where one would have to be cut elsewhere than
    at a divisor."""
    left, found = list(factors), []
    for extent in shape:
        own: list[Factor] = []
        while extent > 1:
            size, stride = left.pop(0)
            if extent % size == 0:
                own.append((size, stride))
                extent //= size
            elif size % extent == 0:
                own.append((extent, stride * (size // extent)))
                left.insert(0, (size // extent, stride))
                extent = 1
            else:
                return None
        found.append(merge_factors(own))
    return tuple(found)


def merge_factors(factors: Sequence[Factor]) -> Dimension:
    """Neighbours that run on from one another as one."""
    merged: list[Factor] = []
    for size, stride in factors:
        if size > 1 and merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        elif size > 1:
            merged.append((size, stride))
    return tuple(merged)


def is_dense(factors: Sequence[Factor], size: int) -> bool:
    """Whether factors in this order are all `size` elements, row by row."""
    return merge_factors(factors) == (((size, 1),) if size > 1 else ())


def list_views(name: str, graph: Graph) -> list[str]:
    """A value and those that it is a view of, the last in memory."""
    names = [name]
    while (node := graph.producers.get(names[-1])) is not None and node.kind in TRACED_KINDS:
        names.append(node.inputs[0])
    return names


def trace_view(names: Sequence[str], source: str, graph: Graph) -> tuple[Dimension, ...] | None:
    """The dimensions of the first of `names`, a list of views, as strides into `source`, one of them; None
    where a view copies."""
    dims: tuple[Dimension, ...] | None = make_dense_dimensions(graph.values[source].shape)
    for name in reversed(names[: names.index(source)]):
        dims = apply_view(dims, graph.producers[name], graph.values[name].shape) if dims is not None else None
    return dims


def map_index(index: Index, shape: Sequence[int], source: Sequence[int]) -> Index:
    """The index into a tensor of shape `source` of an element of its reshape to `shape`."""
    found: list[ex.Operand] = []
    a = b = 0
    while a < len(shape) or b < len(source):
        first, other, first_size, other_size = a, b, 1, 1
        while a == first or b == other or first_size != other_size:
            if a < len(shape) and (first_size <= other_size or b == len(source)):
                first_size, a = first_size * shape[a], a + 1
            elif b < len(source):
                other_size, b = other_size * source[b], b + 1
            else:
                break
        found += _map_block(index[first:a], shape[first:a], source[other:b])
    return tuple(found)


def _map_block(index: Index, shape: Sequence[int], source: Sequence[int]) -> list[ex.Operand]:
    """The same for a few dimensions whose extents have the same product."""
    terms = [
        (i, extent, prod(shape[d + 1 :]))
        for d, (i, extent) in enumerate(zip(index, shape, strict=True))
        if extent > 1
    ]
    return [
        _divide_position(terms, prod(source[d + 1 :]), extent) if extent > 1 else 0
        for d, extent in enumerate(source)
    ]


def _divide_position(terms: Sequence[tuple[ex.Operand, int, int]], stride: int, extent: int) -> ex.Operand:
    """position // stride % extent of the sum of index * stride over terms (index, extent, stride); terms that
    cannot change the result are left out."""
    kept = [(i, size, step) for i, size, step in terms if step % (stride * extent) and stride % (size * step)]
    is_whole = all(step % stride == 0 for _, _, step in kept)
    divisor = stride if is_whole else 1
    position: ex.Operand = 0
    for i, _, step in kept:
        part = i if step == divisor else i * (step // divisor)
        position = part if isinstance(position, int) and position == 0 else position + part
    largest = sum((size - 1) * step for _, size, step in kept)
    if not is_whole:
        position = position // stride
    return position if largest < stride * extent else position % extent


def broadcast_index(index: Index, source: Sequence[int]) -> Index:
    """The index into a tensor that broadcasts, aligned at the last dimension."""
    last = index[len(index) - len(source) :]
    return tuple(0 if extent == 1 else i for i, extent in zip(last, source, strict=True))


MOVE_KINDS = frozenset({"reshape", "permute", "expand", "slice", "concat", "pad", "resize"})
"""Kinds that choose elements and compute nothing."""
POINTWISE_KINDS = MOVE_KINDS | {"elementwise", "cast"}
FLOAT_NAMES = frozenset({"float32", "float16", "bfloat16"})
READABLE_NAMES = FLOAT_NAMES | {"int8", "int32"}
"""Element types of tensors that operators of ekc read."""


def find_reason_against(node: Node, values: Mapping[str, Value]) -> str | None:
    """Why a pointwise node is no expression of ekc; None where it is one."""
    if node.kind == "elementwise" and FUNCTIONS[node.attributes["function"]].expression is None:
        return f"ekc has no function {node.attributes['function']}"
    output = values[node.output].dtype.name
    if output not in FLOAT_NAMES | {"bool"}:
        return describe_type(output)
    if output == "bool" and node.kind == "cast":
        return "ekc has no casts to truth values"
    for name in node.inputs:
        value = values[name]
        if not value.is_constant and value.dtype.name not in READABLE_NAMES | {"bool"}:
            return describe_type(value.dtype.name)
        if 0 in value.shape:
            return "a tensor without elements"
    return None


def describe_type(name: str) -> str:
    """Why tensors of a type are no operands of ekc."""
    if name.startswith(("int", "uint")):
        return f"integers of type {name}: ekc computes float32, float16, bfloat16 and int8"
    if name == "float64":
        return "float64: ekc computes in float32; read the model with dtype='float32'"
    return f"elements of type {name}: ekc computes float32, float16, bfloat16 and int8"


@dataclass(frozen=True)
class ElementWriter:
    """Writes an element of a value; `read` gives those of values that are computed elsewhere."""

    values: Mapping[str, Value]
    producers: Mapping[str, Node]
    inside: frozenset[str]
    """Values whose nodes are written out."""
    read: Callable[[str, Index], ex.Operand]
    results: frozenset[str] = frozenset()
    """Values that depend on the result of a layer: they come first in sums, and gates before them in
    products, so that equal epilogues are equal texts."""

    def write(self, name: str, index: Index) -> ex.Operand:
        """The element of a value at an index, one entry for each dimension."""
        value = self.values[name]
        if name not in self.inside:
            if value.data is not None and value.size == 1:
                return convert_number(value)
            return self.read(name, index)
        node = self.producers[name]
        source = self.values[node.inputs[0]].shape
        options, x = node.attributes, node.inputs[0]
        match node.kind:
            case "cast":
                return self.write(x, index)
            case "elementwise":
                return self._write_function(node, index)
            case "reshape":
                return self.write(x, map_index(index, value.shape, source))
            case "permute":
                places = dict(zip(options["order"], index, strict=True))
                return self.write(x, tuple(places[d] for d in range(len(source))))
            case "expand":
                return self.write(x, broadcast_index(index, source))
            case "slice":
                return self.write(x, _slice_index(index, options["axis"], options["start"], options["step"]))
            case "resize":
                pairs = zip(index, options["factors"], strict=True)
                return self.write(
                    x, tuple(i if factor == 1 or isinstance(i, int) else i // factor for i, factor in pairs)
                )
            case "concat":
                return self._write_concat(node, index)
            case "pad":
                return self._write_pad(node, index, source)
        raise InvalidInput(f"{node.name}: {node.target} is not pointwise")

    def _write_function(self, node: Node, index: Index) -> ex.Operand:
        names, function = node.inputs, FUNCTIONS[node.attributes["function"]]
        if function.is_commutative and not self._are_in_order(*names):
            names = names[::-1]
        operands = [self.write(n, broadcast_index(index, self.values[n].shape)) for n in names]
        if function.name == "causal_mask":
            operands += index[-2:]
        return function.write(operands, node.attributes)

    def _are_in_order(self, a: str, b: str) -> bool:
        """Whether two operands that may be exchanged are in the order of an epilogue."""
        has_result = [name in self.results for name in (a, b)]
        if all(has_result) or not any(has_result):
            return True
        other = b if has_result[0] else a
        return has_result[1] if other in self.inside else has_result[0]

    def _write_concat(self, node: Node, index: Index) -> ex.Operand:
        axis = node.attributes["axis"]
        place, start, parts = index[axis], 0, []
        for name in node.inputs:
            inner = self.write(name, (*index[:axis], place - start if start else place, *index[axis + 1 :]))
            start += self.values[name].shape[axis]
            parts.append((start, inner))
        result = parts[-1][1]
        for end, inner in reversed(parts[:-1]):
            result = ex.where(ex.less(place, end), inner, result)
        return result

    def _write_pad(self, node: Node, index: Index, source: tuple[int, ...]) -> ex.Operand:
        padding, fill = node.attributes["padding"], float(node.attributes["value"])
        inner_index = tuple(i - a if a else i for i, (a, _) in zip(index, padding, strict=True))
        result = self.write(node.inputs[0], inner_index)
        padded = [d for d, ends in enumerate(padding) if any(ends)]
        if fill == 0 and node.inputs[0] not in self.inside and all(source[d] > 1 for d in padded):
            return result  # A read outside of a tensor gives 0.
        for d in padded:
            before, after = padding[d]
            if after:
                result = ex.where(ex.less(index[d], before + source[d]), result, fill)
            if before:
                result = ex.where(ex.less(index[d], before), fill, result)
        return result


def convert_number(value: Value) -> float | int:
    """A constant of one element as a number."""
    assert value.data is not None
    element = value.data.reshape(())[()]
    if value.dtype.kind in "biu":
        return int(element)
    return _restore_number(float(element), value.dtype)


def _restore_number(number: float, dtype: np.dtype[Any]) -> float:
    """The number that was written, where rounding it to its type gives this one: 1e-05 for the float32
    9.999999747378752e-06, the inverse root of a whole number for the scale of attention. So readers whose
    files hold other digits make equal operators."""
    if not math.isfinite(number) or number == 0:
        return number
    whole = round(1 / number**2) if 1e-3 < abs(number) < 1 else 0
    kind = np.float32 if dtype.itemsize >= 4 else dtype.type
    if whole and kind(whole**-0.5) == kind(abs(number)):
        return math.copysign(whole**-0.5, number)
    return shorten_number(number) if dtype.itemsize >= 4 else number


def shorten_number(number: float) -> float:
    """The shortest number that float32 rounds as this one: 1e-05 for 9.999999747378752e-06."""
    return float(str(np.float32(number)))


def _slice_index(index: Index, axis: int, start: int, step: int) -> Index:
    place = index[axis] * step if step != 1 else index[axis]
    return (*index[:axis], place + start if start else place, *index[axis + 1 :])


def squeeze_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without dimensions of extent 1, but with one dimension at least."""
    return tuple(e for e in shape if e > 1) or (1,)


def squeeze_index(index: Index, shape: tuple[int, ...]) -> tuple[ex.Expr, ...]:
    """The index that goes with `squeeze_shape`."""
    kept = tuple(ex.as_expr(i) for i, e in zip(index, shape, strict=True) if e > 1)
    return kept if prod(shape) > 1 else (ex.Const(0),)


def check_read_count(root: str, nodes: Sequence[Node], most: int) -> None:
    """`InvalidInput` where the expression of a value, written out by these nodes, has too many reads."""
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.output] = sum(counts.get(name, 1) for name in node.inputs)
    if counts.get(root, 1) > most:
        raise InvalidInput(f"an expression of {counts[root]} reads; ekc writes at most {most}")
