"""What to compute: an ordered graph of named computes over tensors.

Matmul, matrix-vector and convolution are three expressions here, not three templates; nothing
below this file knows their names.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.arguments import check_choice, format_value
from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.affine import NotAffineError, to_affine
from ekc.ir.arrays import convert_like, read_array
from ekc.ir.dtypes import BFLOAT16, DType, ValueRange, check_element_types
from ekc.ir.expr import check_depth
from ekc.ir.validate import check_identifier, check_int

MAX_ELEMENTS = 2**40
"""No GPU holds a tensor of more elements; a larger extent is a slip of the keyboard."""
COMBINERS = ("sum", "prod", "max", "min")
"""How a reduction combines; `ekc.ir.dtypes.find_reduction_identity` says where it starts."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, shape and element type of a tensor, stored dense and row-major."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in memory."""
        return self.elements * self.dtype.bytes

    @property
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

    @property
    def spatial_axes(self) -> tuple[Axis, ...]:
        """The axes that index the output."""
        return tuple(a for a in self.axes if not a.is_reduction)

    @property
    def reduction_axes(self) -> tuple[Axis, ...]:
        """The axes that are summed (or otherwise combined) over."""
        return tuple(a for a in self.axes if a.is_reduction)

    @property
    def output_element(self) -> ex.Load:
        """The output element that one point of the spatial axes writes."""
        return ex.Load(self.output.name, tuple(ex.Var(a.name) for a in self.spatial_axes))

    def find_axis(self, name: str) -> Axis:
        """The axis of that name."""
        return next(a for a in self.axes if a.name == name)

    @property
    def flops(self) -> float:
        """Arithmetic operations as written: those of the body and one combine, at every point. What reads 0
        outside a tensor counts too, as the taps that a transposed convolution leaves out do."""
        operations = len(list_operations(self.body)) + bool(self.reduction_axes)
        return float(operations) * math.prod(float(a.extent) for a in self.axes)

    def __str__(self) -> str:
        body = str(self.body)
        if self.reduction_axes:
            body = (
                f"{self.combine}[{', '.join(f'{a.name} < {a.extent}' for a in self.reduction_axes)}] {body}"
            )
        return f"{self.output_element} = {body}"


def list_operations(e: ex.Expr) -> list[ex.Binary | ex.Call | ex.Where]:
    """The operations of an expression, those of its indices left out."""
    if not isinstance(e, (ex.Binary, ex.Call, ex.Where)):
        return []
    return [e, *(n for child in ex.children(e) for n in list_operations(child))]


@dataclass(frozen=True)
class Operator:
    """A named graph of computes. `inputs` are the call's arguments, the last compute's output its result."""

    name: str
    inputs: tuple[TensorSpec, ...]
    computes: tuple[Compute, ...]

    def __post_init__(self) -> None:
        _validate_operator(self)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What the kernel returns."""
        return (self.computes[-1].output,)

    @cached_property
    def tensors(self) -> dict[str, TensorSpec]:
        """Every tensor by name."""
        return {t.name: t for t in (*self.inputs, *(c.output for c in self.computes))}

    @property
    def flops(self) -> float:
        """Arithmetic operations of the whole graph as written (a multiply-add counts two)."""
        return sum(c.flops for c in self.computes)

    @property
    def min_bytes(self) -> float:
        """Compulsory traffic: inputs read once, outputs written once."""
        return float(sum(t.bytes for t in (*self.inputs, *self.outputs)))

    def to_json(self) -> dict[str, Any]:
        """A JSON value from which `ekc.ir.serialize.operator_from_json` rebuilds the operator."""
        from ekc.ir.serialize import operator_to_json

        return operator_to_json(self)

    @cached_property
    def digest(self) -> str:
        """A name for the contents: equal operators have equal digests, on any machine."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def reference(self, *arrays: Any) -> Any:
        """The result in NumPy with float64 accumulation; arrays in the order of `inputs`.

        Integers are exact; what reads int32 wraps modulo 2**32, as in a kernel.
        The result is an array of the first input's library, a tensor for tensors of PyTorch on the CPU.
        """
        from ekc.ir.interpreter.reference import evaluate_reference

        result = evaluate_reference(self, arrays)
        return convert_like(arrays[0], result) if arrays else result

    def then(
        self,
        output: str,
        *,
        body: Any,
        axes: dict[str, int],
        reduce: dict[str, int] | None = None,
        inputs: dict[str, tuple[int, ...]] | None = None,
        combine: str = "sum",
        dtype: str | None = None,
        acc_dtype: str | None = None,
        out_dtype: str | None = None,
    ) -> Operator:
        """This operator followed by one more compute that may read everything before it.

        `dtype` is that of the further inputs; without it, what sums of the first input are stored as.

        >>> ekc.matmul(8, 8, 8).then("D", axes={"p": 8, "q": 8}, body=lambda C, p, q: ekc.relu(C[p, q]))
        """
        from ekc.ir.operators import append_compute

        types = (dtype, acc_dtype, out_dtype)
        over, extra = {} if reduce is None else reduce, {} if inputs is None else inputs
        return append_compute(self, output, body, axes, over, extra, combine, *types)

    def epilogue(
        self, body: Callable[..., ex.Operand], /, *, out_dtype: str | None = None, **inputs: tuple[int, ...]
    ) -> Operator:
        """This operator with an elementwise function of its result: bias, activation, residual, scale.

        The first parameter of `body` is an element of the result; each further one is an element of an
        input of its own, whose shape is given by name and broadcasts against the last dimensions of the
        result as in NumPy. Inputs have the dtype of the result, which `out_dtype` changes (a cast).
        Epilogues chain; `Schedule.compute_inline` and the tuner fuse them into the kernel before.

        >>> ekc.matmul(64, 48, 32).epilogue(lambda c, bias: ekc.relu(c + bias), bias=(48,))
        >>> ekc.conv2d(1, 8, 14, 14, out_channels=16).epilogue(lambda y, bias: y + bias, bias=(16, 1, 1))

        Raises `InvalidInput` for a shape that does not broadcast, a name that is taken, a body whose
        parameters are not the inputs or that leaves the result out.
        """
        from ekc.ir.epilogue import append_epilogue

        return append_epilogue(self, body, inputs, out_dtype)

    def check_array_count(self, arrays: Sequence[Any]) -> None:
        """`InvalidInput` unless there is one array for each input."""
        if len(arrays) != len(self.inputs):
            names = ", ".join(t.name for t in self.inputs)
            raise InvalidInput(f"{self.name}: takes {len(self.inputs)} arrays ({names}), got {len(arrays)}")

    def check_arrays(self, arrays: tuple[Any, ...]) -> tuple[NDArray[Any], ...]:
        """The arrays as NumPy's, each of the declared shape and dtype; `InvalidInput` names the first that is
        not."""
        self.check_array_count(arrays)
        read = tuple(read_array(spec, array) for spec, array in zip(self.inputs, arrays, strict=True))
        for spec, array in zip(self.inputs, read, strict=True):
            if array.shape != spec.shape:
                raise InvalidInput(f"{self.name}: {spec.name} has shape {array.shape}, needed {spec.shape}")
            if array.dtype != spec.dtype.numpy_dtype:
                # Words without a type of their own hold bits, not numbers.
                as_type = "view" if array.dtype == np.uint16 and spec.dtype is BFLOAT16 else "astype"
                fix = f"{spec.name}.{as_type}({spec.dtype.numpy_dtype.name!r})"
                raise InvalidInput(
                    f"{self.name}: {spec.name} is {array.dtype}, needed {spec.dtype}; try {fix}"
                )
        return read

    def __str__(self) -> str:
        lines = [f"{self.name}({', '.join(map(str, self.inputs))})"]
        return "\n".join([*lines, *(f"  {c}" for c in self.computes)])


def _validate_operator(op: Operator) -> None:
    """Refuse names that would not survive in CUDA text, and graphs that do not hang together."""
    check_identifier("operator", op.name)
    if not isinstance(op.inputs, tuple) or not all(isinstance(t, TensorSpec) for t in op.inputs):
        raise InvalidInput(f"inputs: {format_value(op.inputs)} is no tuple of tensors; ekc.compute makes one")
    made = isinstance(op.computes, tuple) and all(isinstance(c, Compute) for c in op.computes)
    if not made or not op.computes:
        raise InvalidInput(
            f"computes: {format_value(op.computes)} is no tuple of computes; ekc.compute makes one"
        )
    known: dict[str, TensorSpec] = {}
    for spec in op.inputs:
        _declare_tensor(known, spec)
    axes: set[str] = set()
    spans: dict[str, ValueRange] = {}
    for compute in op.computes:
        for axis in compute.axes:
            check_identifier("axis", axis.name)
            check_int(f"extent of axis {axis.name}", axis.extent, MAX_ELEMENTS)
            if axis.name in axes:
                raise InvalidInput(
                    f"axis: {axis.name!r} is used twice in {op.name}; give each compute its own names"
                )
            axes.add(axis.name)
        check_choice("combine", compute.combine, COMBINERS)
        check_depth(compute.output.name, compute.body, ex.children)
        _check_body(op, compute, known)
        check_element_types(compute, known, spans)
        _declare_tensor(known, compute.output)
        shape = tuple(a.extent for a in compute.spatial_axes)
        if compute.output.shape != shape or compute.axes != (*compute.spatial_axes, *compute.reduction_axes):
            raise InvalidInput(
                f"{op.name}: {compute.output} is not indexed by its spatial axes {shape}, reductions last"
            )
    for name in sorted(axes & set(known)):
        raise InvalidInput(f"axis: {name!r} is the name of a tensor too; try {name.lower() + '_'!r}")


def _declare_tensor(declared: dict[str, TensorSpec], spec: TensorSpec) -> None:
    check_identifier("tensor", spec.name)
    if spec.name in declared:
        raise InvalidInput(f"tensor: {spec.name!r} is declared twice")
    if not spec.shape:
        raise InvalidInput(f"shape of {spec.name}: () has no dimensions; try (1,)")
    for extent in spec.shape:
        check_int(f"extent of {spec.name}", extent, MAX_ELEMENTS)
    if spec.elements > MAX_ELEMENTS:
        raise InvalidInput(f"tensor: {spec.name} has {spec.elements} elements, the limit is 2**40")
    declared[spec.name] = spec


def _check_body(op: Operator, compute: Compute, declared: dict[str, TensorSpec]) -> None:
    names = {a.name for a in compute.axes}
    for load in ex.find_loads(compute.body):
        if load.tensor not in declared:
            raise InvalidInput(
                f"{op.name}: {compute.output.name} reads {load.tensor!r}, which is not declared before it"
            )
        rank = len(declared[load.tensor].shape)
        if len(load.index) != rank:
            raise InvalidInput(
                f"{op.name}: {load} has {len(load.index)} indices, {load.tensor} has {rank} dimensions"
            )
        for index in load.index:
            try:
                to_affine(index, {})
            except NotAffineError as problem:
                raise InvalidInput(f"{op.name}: index of {load.tensor}: {problem}") from None
    for name in sorted(ex.find_variables(compute.body) - names):
        raise InvalidInput(f"{op.name}: {name!r} in the body of {compute.output.name} is not one of its axes")
