"""The graph of computes that an operator is: its checks, its JSON and its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ekc.argument_checks import check_choice, format_value
from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.affine import NotAffineError, to_affine
from ekc.ir.arrays import read_array
from ekc.ir.compute import (
    COMBINERS,
    MAX_ELEMENTS,
    Axis,
    Compute,
    TensorSpec,
)
from ekc.ir.dtypes import BFLOAT16
from ekc.ir.element_types import ValueRange, check_element_types
from ekc.ir.validate import (
    check_identifier,
    check_int,
    check_kernel_name,
    check_shape_value,
    check_size,
    make_unique_name,
)


@dataclass(frozen=True)
class OperatorGraph:
    """A named graph of computes. `inputs` are the call's arguments, the last compute's output its result."""

    name: str
    inputs: tuple[TensorSpec, ...]
    computes: tuple[Compute, ...]

    def __post_init__(self) -> None:
        _validate_operator(self)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The tensors that the kernel returns."""
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

    def list_read_axes(self, tensor: str) -> list[tuple[Axis, ...]]:
        """For each read of a tensor, in order: the axes of the reading compute that its index depends on."""
        return [
            tuple(axis for axis in compute.axes if axis.name in ex.find_variables(load))
            for compute in self.computes
            for load in ex.find_loads(compute.body)
            if load.tensor == tensor
        ]

    def to_json(self) -> dict[str, Any]:
        """A JSON value from which `ekc.ir.operator.operator_from_json` rebuilds the operator."""
        return {
            "name": self.name,
            "inputs": [_tensor_to_json(t) for t in self.inputs],
            "computes": [
                {
                    "output": _tensor_to_json(c.output),
                    "axes": [[a.name, a.extent, a.is_reduction] for a in c.axes],
                    "body": expr_to_json(c.body),
                    "combine": c.combine,
                    "acc_dtype": c.acc_dtype.name,
                }
                for c in self.computes
            ],
        }

    @cached_property
    def digest(self) -> str:
        """Hash of the contents, 16 hex digits: equal operators have equal digests, on any machine."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def check_array_count(self, arrays: Sequence[Any]) -> None:
        """`InvalidInput` unless there is one array for each input."""
        if len(arrays) != len(self.inputs):
            names = ", ".join(t.name for t in self.inputs)
            raise InvalidInput(f"{self.name}: takes {len(self.inputs)} arrays ({names}), got {len(arrays)}")

    def check_arrays(self, arrays: tuple[Any, ...]) -> tuple[NDArray[Any], ...]:
        """The arrays as NumPy's; `InvalidInput` names the first of another shape or dtype than declared."""
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


def _validate_operator(op: OperatorGraph) -> None:
    """Refuse names that CUDA text cannot have, and graphs whose parts do not fit each other."""
    check_kernel_name("operator", op.name)
    if not isinstance(op.inputs, tuple) or not all(isinstance(t, TensorSpec) for t in op.inputs):
        raise InvalidInput(f"inputs: {format_value(op.inputs)} is no tuple of tensors; ekc.compute makes one")
    are_computes = isinstance(op.computes, tuple) and all(isinstance(c, Compute) for c in op.computes)
    if not are_computes or not op.computes:
        raise InvalidInput(
            f"computes: {format_value(op.computes)} is no tuple of computes; ekc.compute makes one"
        )
    declared: dict[str, TensorSpec] = {}
    for spec in op.inputs:
        _declare_tensor(declared, spec)
    axes: dict[str, str] = {}
    ranges: dict[str, ValueRange] = {}
    for compute in op.computes:
        for axis in compute.axes:
            check_identifier("axis", axis.name)
            check_int(f"extent of axis {axis.name}", axis.extent, MAX_ELEMENTS)
            if axis.name in axes:
                raise InvalidInput(
                    f"axis: {axis.name!r} of {compute.output.name} is an axis of {axes[axis.name]} already; "
                    f"try {axis.name + '2'!r}"
                )
            axes[axis.name] = compute.output.name
        check_choice("combine", compute.combine, COMBINERS)
        check_size(compute.output.name, compute.body, ex.children)
        _check_body(op, compute, declared)
        check_element_types(compute, declared, ranges)
        _declare_tensor(declared, compute.output)
        shape = tuple(a.extent for a in compute.spatial_axes)
        if compute.output.shape != shape or compute.axes != (*compute.spatial_axes, *compute.reduction_axes):
            raise InvalidInput(
                f"{op.name}: {compute.output} is not indexed by its spatial axes {shape}, reductions last"
            )
    for name in sorted(axes.keys() & declared):
        raise InvalidInput(f"axis: {name!r} is the name of a tensor too; try {name.lower() + '_'!r}")


def _declare_tensor(declared: dict[str, TensorSpec], spec: TensorSpec) -> None:
    check_identifier("tensor", spec.name)
    if spec.name in declared:
        raise InvalidInput(f"tensor: {spec.name!r} is declared twice")
    if not spec.shape:
        raise InvalidInput(f"shape of {spec.name}: () has no dimensions; try (1,)")
    for extent in check_shape_value(spec.name, spec.shape):
        check_int(f"extent of {spec.name}", extent, MAX_ELEMENTS)
    if spec.elements > MAX_ELEMENTS:
        raise InvalidInput(f"tensor: {spec.name} has {spec.elements} elements, at most 2**40")
    declared[spec.name] = spec


def _check_body(op: OperatorGraph, compute: Compute, declared: dict[str, TensorSpec]) -> None:
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


Graph = TypeVar("Graph", bound=OperatorGraph)


def rename_hidden_parts(op: Graph, names: Iterable[str]) -> Graph:
    """The operator with an underscore added to axes and intermediate results that have one of these names.
    Tensors of these names can then be added to an operator whose axes their author did not write: for
    `{"k"}` a product is summed over `k_`."""
    names = {name for name in names if isinstance(name, str)}  # The others are refused later.
    axes = {a.name for c in op.computes for a in c.axes}
    clashing = (axes | {c.output.name for c in op.computes[:-1]}) & names
    taken = {*op.tensors, *axes, *names}
    new = {name: make_unique_name(name, taken) for name in sorted(clashing)}
    variables = {name: ex.Var(new[name]) for name in clashing & axes}

    def rename_load(load: ex.Load) -> ex.Load:
        return ex.Load(new.get(load.tensor, load.tensor), load.index)

    computes = (
        replace(
            c,
            output=replace(c.output, name=new.get(c.output.name, c.output.name)),
            axes=tuple(replace(a, name=new.get(a.name, a.name)) for a in c.axes),
            body=ex.replace_loads(ex.substitute(c.body, variables), rename_load),
        )
        for c in op.computes
    )
    return replace(op, computes=tuple(computes)) if new else op


def expr_to_json(e: ex.Expr) -> Any:
    """`A[i, 2] * 3` -> ["*", ["load", "A", ["var", "i"], 2], 3]."""
    if isinstance(e, ex.Const):
        return e.value
    if isinstance(e, ex.Var):
        return ["var", e.name]
    if isinstance(e, ex.Load):
        return ["load", e.tensor, *map(expr_to_json, e.index)]
    if isinstance(e, ex.Call):
        return ["call", e.function, expr_to_json(e.argument)]
    if isinstance(e, ex.Where):
        return ["where", e.op, *map(expr_to_json, ex.children(e))]
    assert isinstance(e, ex.Binary)
    return [e.op, expr_to_json(e.a), expr_to_json(e.b)]


def _tensor_to_json(t: TensorSpec) -> list[Any]:
    return [t.name, list(t.shape), t.dtype.name]
