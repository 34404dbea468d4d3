"""Elementwise computes appended to an operator: bias, activation, residual, scale."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.arguments import format_value
from ekc.ir.checks import check_identifier, check_int, list_required_parameters, to_tuple
from ekc.ir.depth import check_depth
from ekc.ir.dtypes import FLOAT32, DType, parse_dtype
from ekc.ir.operator import MAX_ELEMENTS, Axis, Compute, Operator, TensorSpec

_OUTPUT_SUFFIX = re.compile(r"_out\d*\Z")


def append_epilogue(
    op: Operator,
    body: Callable[..., ex.Operand],
    shapes: Mapping[str, tuple[int, ...]],
    out_dtype: str | None,
) -> Operator:
    """`op` and one more compute, elementwise in its result; see `Operator.epilogue`."""
    if out_dtype is not None and not isinstance(out_dtype, (str, DType)):
        raise InvalidInput(
            f"epilogue: out_dtype={format_value(out_dtype)} is no type; call an input out_dtype_ instead"
        )
    result, last = op.outputs[0], op.computes[-1]
    taken = {*op.tensors, *(a.name for c in op.computes for a in c.axes), *shapes}
    axes = tuple(Axis(_make_output_name(a.name, taken), a.extent) for a in last.spatial_axes)
    out = parse_dtype(result.dtype if out_dtype is None else out_dtype)
    # Integers that become floats are scaled by floats, and in floats.
    element = out if result.dtype.is_integer and not out.is_integer else result.dtype
    acc = FLOAT32 if not element.is_integer else last.acc_dtype
    inputs = tuple(TensorSpec(n, _check_shape(op, result, n, s), element) for n, s in shapes.items())
    loads = [_make_broadcast_load(t, axes) for t in (result, *inputs)]
    output = TensorSpec(_make_output_name(result.name, taken), result.shape, out)
    value = _trace_body(body, result, shapes, loads)
    compute = Compute(output, axes, value, "sum", acc)
    name = op.name if op.name.endswith("_epilogue") else f"{op.name}_epilogue"
    return replace(op, name=name, inputs=(*op.inputs, *inputs), computes=(*op.computes, compute))


def _make_output_name(name: str, taken: set[str]) -> str:
    """`C` -> `C_out`, `C_out` -> `C_out2`: the first that nothing else is called."""
    root, number = _OUTPUT_SUFFIX.sub("", name), 1
    while (found := f"{root}_out{number if number > 1 else ''}") in taken:
        number += 1
    return found


def _check_shape(op: Operator, result: TensorSpec, name: str, shape: Any) -> tuple[int, ...]:
    check_identifier("tensor", name)
    if name in op.tensors:
        raise InvalidInput(f"epilogue: {name!r} is a tensor of {op.name} already; try {name + '_2'!r}")
    given = to_tuple(shape)
    if not given:
        raise InvalidInput(
            f"epilogue: shape of {name}: {format_value(shape)} is not a tuple of extents; try (1,)"
        )
    extents = tuple(check_int(f"extent of {name}", e, MAX_ELEMENTS) for e in given)
    last = result.shape[max(0, len(result.shape) - len(extents)) :]
    if len(extents) > len(last) or any(e not in (1, of) for e, of in zip(extents, last, strict=True)):
        raise InvalidInput(
            f"epilogue: {name} of shape {extents} does not broadcast to {result.name} of shape "
            f"{result.shape}; the nearest shape is {last}"
        )
    return extents


def _make_broadcast_load(tensor: TensorSpec, axes: tuple[Axis, ...]) -> ex.Load:
    """The element that meets one of the result: dimensions align at the last, those of extent 1 stretch."""
    along = zip(tensor.shape, axes[len(axes) - len(tensor.shape) :], strict=True)
    return ex.Load(tensor.name, tuple(ex.Var(a.name) if e == a.extent else ex.Const(0) for e, a in along))


def _trace_body(
    body: Callable[..., ex.Operand], result: TensorSpec, shapes: Mapping[str, Any], loads: list[ex.Load]
) -> ex.Expr:
    """The body called with elements: the first parameter is the result's, the others go by name."""
    asked = list_required_parameters(body, shapes)
    if not asked:
        raise InvalidInput("epilogue: the body takes no element; try lambda c: ekc.relu(c)")
    first, *others = asked
    if set(others) != set(shapes):
        told, needed = ", ".join(shapes) or "none", ", ".join(others) or "nothing"
        raise InvalidInput(
            f"epilogue: the body takes {needed} beside {first!r}, the inputs given are {told}; "
            f"give each parameter after the first its shape"
        )
    own, *rest = loads
    value = body(own, **dict(zip(shapes, rest, strict=True)))
    if isinstance(value, ex.Condition):
        value = ex.as_expr(value)
    if isinstance(value, ex.Expr):
        check_depth(result.name, value, ex.children)
    if not isinstance(value, ex.Expr) or own not in ex.find_loads(value):
        raise InvalidInput(
            f"epilogue: the body gives {value}, which has no element of {result.name}; use {first!r}"
        )
    return value
