"""Computes from Python functions: a body is called with tensors and axes, and returns an expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from ekc.argument_checks import check_mapping, format_value
from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.compute import MAX_ELEMENTS, Axis, Compute, TensorSpec
from ekc.ir.dtypes import DType, choose_accumulator_and_result, parse_dtype
from ekc.ir.graph import Graph, rename_hidden_parts
from ekc.ir.validate import check_identifier, check_int, check_shape_value, list_required_parameters, to_tuple


@dataclass(frozen=True)
class Tensor:
    """A tensor inside the body of a compute: index it to read an element."""

    name: str

    def __getitem__(self, index: ex.Operand | tuple[ex.Operand, ...]) -> ex.Load:
        index = index if isinstance(index, tuple) else (index,)
        return ex.Load(self.name, tuple(ex.as_expr(i) for i in index))

    def _refuse_unindexed(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidInput(
            f"body: {self.name} is a whole tensor; index it to read an element: {self.name}[i]"
        )

    # Without these, Python would ask for A[0], A[1], ... for ever.
    __iter__ = __contains__ = _refuse_unindexed
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse_unindexed
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse_unindexed
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __neg__ = __abs__ = _refuse_unindexed
    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __float__ = __array_ufunc__ = _refuse_unindexed


def make_compute(
    output: str,
    body: Callable[..., ex.Expr],
    axes: Mapping[str, int],
    reduce: Mapping[str, int],
    tensor_names: list[str],
    combine: str,
    dtype: DType,
    acc_dtype: str | None,
    out_dtype: str | None,
) -> Compute:
    """One compute, its body called with tensors and axes by parameter name."""
    check_identifier("output", output)
    check_mapping("axes", axes, 'axes={"i": 64}')
    check_mapping("reduce", reduce, 'reduce={"k": 64}')
    if not axes:
        raise InvalidInput(f"{output}: needs at least one spatial axis; use an axis of extent 1")
    for axis, extent in (*axes.items(), *reduce.items()):
        check_int(f"extent of axis {check_identifier('axis', axis)}", extent, MAX_ELEMENTS)
        if axis in tensor_names or axis == output:
            raise InvalidInput(f"axis: {axis!r} is the name of a tensor too; try {axis.lower() + '_'!r}")
    all_axes = tuple(Axis(a, int(e), group is reduce) for group in (axes, reduce) for a, e in group.items())
    arguments: dict[str, Any] = {t: Tensor(t) for t in tensor_names}
    arguments |= {a.name: ex.Var(a.name) for a in all_axes}
    parameters = list_required_parameters(body, arguments)
    if parameters is None:
        raise InvalidInput(
            f"body: {format_value(body)} is no function of tensors and axes; try lambda A, i: A[i]"
        )
    for parameter in parameters:
        if parameter not in arguments:
            raise InvalidInput(
                f"body: parameter {parameter!r} is neither a tensor nor an axis ({', '.join(arguments)})"
            )
    acc, out = choose_accumulator_and_result(dtype, acc_dtype, out_dtype)
    spec = TensorSpec(output, tuple(int(e) for e in axes.values()), out)
    value = body(**{p: arguments[p] for p in parameters})
    if not isinstance(value, (ex.Expr, ex.Condition, int, float)):
        raise InvalidInput(
            f"body: returned {format_value(value)}, needed an expression of {', '.join(arguments)}"
        )
    return Compute(spec, all_axes, ex.as_expr(value), combine, acc)


def append_compute(
    op: Graph,
    output: str,
    body: Callable[..., ex.Expr],
    axes: Mapping[str, int],
    reduce: Mapping[str, int],
    inputs: Mapping[str, tuple[int, ...]],
    combine: str,
    dtype: str | None,
    acc_dtype: str | None,
    out_dtype: str | None,
) -> Graph:
    """`op` and one more compute; see `Operator.then`."""
    op = rename_hidden_parts(op, [output, *check_mapping("inputs", inputs, 'inputs={"B": (64,)}')])
    element = parse_dtype((*op.inputs, *op.outputs)[0].dtype.default_result if dtype is None else dtype)
    extra = tuple(TensorSpec(n, check_shape(n, s), element) for n, s in inputs.items())
    names = [*op.tensors, *(t.name for t in extra)]
    last = make_compute(output, body, axes, reduce, names, combine, element, acc_dtype, out_dtype)
    return replace(op, name=f"{op.name}_{output}", inputs=(*op.inputs, *extra), computes=(*op.computes, last))


def check_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape as given from outside: extents from 1 to 2**40."""
    check_identifier("tensor", name)
    extents = to_tuple(check_shape_value(name, shape))
    if extents is None:
        fix = f"try ({_suggest_extent(shape)},)"
        raise InvalidInput(f"shape of {name}: {format_value(shape)} is not a tuple of extents; {fix}")
    if not extents:
        raise InvalidInput(f"shape of {name}: () has no dimensions; try (1,)")
    return tuple(check_int(f"extent of {name}", e, MAX_ELEMENTS) for e in extents)


def _suggest_extent(value: Any) -> int:
    """The extent that may have been meant as the only one."""
    legal = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_ELEMENTS
    return value if legal else 64
