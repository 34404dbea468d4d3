"""Views of values: which elements reshape, permute and expand name, as strides into the value below them.

A dimension is a list of factors (extent, stride): a dimension of 32 heads, 4 of which share a key, is
((8, 4096), (4, 0)).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod

from ekc.ir import expr as ex
from ekc.models.graph import Node, Value

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


@dataclass(frozen=True)
class ViewChain:
    """A value and those that it is a view of, the last in memory."""

    names: tuple[str, ...]

    def trace_from(
        self, source: str, producers: Mapping[str, Node], values: Mapping[str, Value]
    ) -> tuple[Dimension, ...] | None:
        """The dimensions of the value as strides into `source`, one of the chain."""
        dims: tuple[Dimension, ...] | None = make_dense_dimensions(values[source].shape)
        for name in reversed(self.names[: self.names.index(source)]):
            dims = apply_view(dims, producers[name], values[name].shape) if dims is not None else None
        return dims


def find_view_chain(name: str, producers: Mapping[str, Node]) -> ViewChain:
    """The chain of views from a value to the one that they all are views of."""
    names = [name]
    while (node := producers.get(names[-1])) is not None and node.kind in TRACED_KINDS:
        names.append(node.inputs[0])
    return ViewChain(tuple(names))


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
    wide = [d for d, extent in enumerate(source) if extent > 1]
    found: list[ex.Operand] = [0] * len(source)
    for d in wide:
        found[d] = _divide_position(terms, prod(source[d + 1 :]), source[d])
    return found


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
