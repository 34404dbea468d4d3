"""Tensors, axes and computes: the parts of an operator.

Matmul, matrix-vector product and convolution are three expressions, not three templates: no module below
`ekc.ir.operators` knows their names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ekc.display import format_line
from ekc.ir import expr as ex
from ekc.ir.dtypes import DType

MAX_ELEMENTS = 2**40
"""Most elements of a tensor; no GPU holds more, so a larger extent is a typing error."""
COMBINERS = ("sum", "prod", "max", "min")
"""Ways to combine values in a reduction; `ekc.ir.dtypes.find_reduction_identity` has their start values."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and element type of a tensor, stored dense and row-major."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @cached_property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in memory."""
        return self.elements * self.dtype.bytes

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours in each dimension."""
        return tuple(math.prod(self.shape[d + 1 :]) for d in range(len(self.shape)))

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.shape))}] {self.dtype}"


@dataclass(frozen=True)
class Axis:
    """One loop axis of a compute, running over [0, extent)."""

    name: str
    extent: int
    is_reduction: bool = False


@dataclass(frozen=True)
class Compute:
    """output[spatial axes] = combine over the reduction axes of body, accumulated in `acc_dtype`."""

    output: TensorSpec
    axes: tuple[Axis, ...]
    """Spatial axes in the order of the output's dimensions, then reduction axes."""
    body: ex.Expr
    combine: str
    acc_dtype: DType

    @cached_property
    def spatial_axes(self) -> tuple[Axis, ...]:
        """The axes that index the output."""
        return tuple(a for a in self.axes if not a.is_reduction)

    @cached_property
    def reduction_axes(self) -> tuple[Axis, ...]:
        """The axes that are summed (or otherwise combined) over."""
        return tuple(a for a in self.axes if a.is_reduction)

    @cached_property
    def loads(self) -> tuple[ex.Load, ...]:
        """The distinct tensor reads of the body, in order of appearance."""
        return ex.find_loads(self.body)

    @cached_property
    def output_element(self) -> ex.Load:
        """The output element that one point of the spatial axes writes."""
        return ex.Load(self.output.name, tuple(ex.Var(a.name) for a in self.spatial_axes))

    def find_axis(self, name: str) -> Axis:
        """The axis of that name."""
        return next(a for a in self.axes if a.name == name)

    @cached_property
    def flops(self) -> float:
        """Arithmetic operations as written: those of the body and one combine, at every point. Points that
        read 0 outside a tensor count too, as the taps that a transposed convolution skips."""
        operations = len(list_operations(self.body)) + bool(self.reduction_axes)
        return float(operations) * math.prod(float(a.extent) for a in self.axes)

    def __str__(self) -> str:
        body = str(self.body)
        if self.reduction_axes:
            bounds = ", ".join(f"{a.name} < {a.extent}" for a in self.reduction_axes)
            body = f"{self.combine}[{bounds}] {body}"
        return f"{self.output_element} = {body}"

    def __repr__(self) -> str:
        return format_line(self, str(self))


def list_operations(e: ex.Expr) -> list[ex.Binary | ex.Call | ex.Where]:
    """The operations of an expression, those of its indices left out."""
    if not isinstance(e, (ex.Binary, ex.Call, ex.Where)):
        return []
    return [e, *(n for child in ex.children(e) for n in list_operations(child))]
