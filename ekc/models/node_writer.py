"""The nodes that the readers of ONNX and PyTorch add for an operator: moves, casts, reductions, products."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np

Name = TypeVar("Name", bound=str)
Rows = np.ndarray[Any, np.dtype[np.int64]]
Padding = tuple[tuple[int, int], ...]
"""(before, after) of each dimension."""


class NotExpressible(Exception):
    """The kinds of a `Graph` cannot say what an operator computes; the text is the reason."""


class NodeWriter(ABC, Generic[Name]):
    """An operator of a framework, to which a reader adds nodes. A method that adds one returns the name of
    its output; one that would change nothing returns the value itself."""

    @abstractmethod
    def get_shape(self, value: str) -> tuple[int, ...]:
        """Shape of a value."""

    @abstractmethod
    def get_dtype(self, value: str) -> np.dtype[Any]:
        """Element type of a value in the graph."""

    @abstractmethod
    def emit(
        self,
        kind: str,
        inputs: Sequence[str],
        shape: Sequence[int],
        dtype: np.dtype[Any] | None = None,
        **attributes: Any,
    ) -> Name:
        """Add a node with a value of its own."""

    @abstractmethod
    def take_rows(self, value: Name, axis: int, rows: Rows) -> Name:
        """Rows of an axis, by numbers that are neither evenly spaced nor each repeated equally often."""

    def reshape(self, value: Name, shape: Sequence[int], kind: str = "reshape") -> Name:
        """The value in another shape, by a node of a kind without attributes."""
        found = tuple(int(e) for e in shape)
        if found == self.get_shape(value):
            return value
        return self.emit(kind, (value,), found, self.get_dtype(value))

    def permute(self, value: Name, order: Sequence[int]) -> Name:
        """The value with its dimensions in another order."""
        if tuple(order) == tuple(range(len(order))):
            return value
        shape = [self.get_shape(value)[axis] for axis in order]
        return self.emit("permute", (value,), shape, self.get_dtype(value), order=tuple(order))

    def expand(self, value: Name, shape: Sequence[int]) -> Name:
        """The value broadcast to a shape."""
        return self.reshape(value, shape, "expand")

    def cast(self, value: Name, dtype: np.dtype[Any]) -> Name:
        """The value in another type."""
        if self.get_dtype(value) == dtype:
            return value
        return self.emit("cast", (value,), self.get_shape(value), dtype)

    def slice(self, value: Name, axis: int, start: int, stop: int, step: int = 1) -> Name:
        """Elements start, start + step, ... before stop of an axis; both are inside of the dimension."""
        shape = list(self.get_shape(value))
        if (start, stop, step) == (0, shape[axis], 1):
            return value
        shape[axis] = len(range(start, stop, step))
        dtype = self.get_dtype(value)
        return self.emit("slice", (value,), shape, dtype, axis=axis, start=start, stop=stop, step=step)

    def pad(self, value: Name, padding: Sequence[tuple[int, int]], number: float) -> Name:
        """The value with a border of a number around it; entries below 0 take elements away."""
        for axis, (before, after) in enumerate(padding):
            size = self.get_shape(value)[axis]
            value = self.slice(value, axis, max(0, -before), size - max(0, -after))
        added = tuple((max(0, before), max(0, after)) for before, after in padding)
        if not any(map(any, added)):
            return value
        shape = [size + sum(ends) for size, ends in zip(self.get_shape(value), added, strict=True)]
        return self.emit("pad", (value,), shape, self.get_dtype(value), padding=added, value=number)

    def reduce(self, combine: str, value: Name, axes: Sequence[int], keepdims: bool) -> Name:
        """A reduction over axes."""
        sizes = enumerate(self.get_shape(value))
        shape = [1 if axis in axes else size for axis, size in sizes if keepdims or axis not in axes]
        options = {"combine": combine, "axes": tuple(axes), "keepdims": keepdims}
        return self.emit("reduce", (value,), shape, self.get_dtype(value), **options)

    def multiply(self, a: Name, b: Name) -> Name:
        """A matrix product; a vector on the left is a row, on the right a column."""
        left, right = self.get_shape(a), self.get_shape(b)
        x = self.reshape(a, (1, *left)) if len(left) == 1 else a
        y = self.reshape(b, (*right, 1)) if len(right) == 1 else b
        rows, columns = self.get_shape(x), self.get_shape(y)
        if rows[-1] != columns[-2]:
            raise NotExpressible(f"{rows[-1]} columns times {columns[-2]} rows")
        batch = np.broadcast_shapes(rows[:-2], columns[:-2])
        made = self.emit("matmul", (x, y), (*batch, rows[-2], columns[-1]), self.get_dtype(a))
        last = right[-1:] if len(right) > 1 else ()
        return self.reshape(made, (*batch, *left[-2:-1], *last))

    def resize(self, value: Name, rows: Sequence[Rows]) -> Name:
        """The rows of each axis that have these numbers: whole factors up are a resize, even steps slices."""
        factors = [1] * len(rows)
        for axis, row in enumerate(rows):
            size = self.get_shape(value)[axis]
            factor = max(len(row) // max(size, 1), 1)
            step = int(row[1] - row[0]) if len(row) > 1 else 1
            if len(row) == size * factor and np.array_equal(row, np.arange(len(row)) // factor):
                factors[axis] = factor
            elif step > 0 and np.array_equal(row, row[0] + step * np.arange(len(row))):
                value = self.slice(value, axis, int(row[0]), int(row[-1]) + 1, step)
            else:
                value = self.take_rows(value, axis, row)
        if all(factor == 1 for factor in factors):
            return value
        shape = [size * factor for size, factor in zip(self.get_shape(value), factors, strict=True)]
        return self.emit("resize", (value,), shape, self.get_dtype(value), factors=tuple(factors))


def extend_padding(
    padding: Padding,
    sizes: Sequence[int],
    outputs: Sequence[int],
    window: tuple[Sequence[int], Sequence[int], Sequence[int]],
) -> Padding:
    """Padding of a pool, with what `ceil_mode` adds behind each dimension so that the last window fits.
    `window`: kernel, stride and dilation."""
    extended = []
    for (before, after), size, output, kernel, stride, dilation in zip(
        padding, sizes, outputs, *window, strict=True
    ):
        reach = (output - 1) * stride + (kernel - 1) * dilation + 1
        extended.append((before, max(after, reach - size - before)))
    return tuple(extended)
