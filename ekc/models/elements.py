"""One element of a value as an expression of elements of others: elementwise functions and moves together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.models.functions import FUNCTIONS
from ekc.models.graph import Node, Value
from ekc.models.views import Index, broadcast_index, map_index

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
                return self.write(x, tuple(_divide_index(i, factor) for i, factor in pairs))
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


def _divide_index(place: ex.Operand, factor: int) -> ex.Operand:
    return place if factor == 1 or isinstance(place, int) else place // factor


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
