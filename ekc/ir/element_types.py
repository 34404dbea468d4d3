"""Checks of the element types of an operator, and of the range of values where these are integers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.compute import Compute, TensorSpec
from ekc.ir.dtypes import FLOAT32, INT8, INT32, DType, parse_dtype
from ekc.ir.functions import BINARY_FUNCTIONS

ValueRange = tuple[int, int] | None
"""(least, greatest) value of an integer tensor; None for the full range of its type."""
_EXACT_INT32_OPERATIONS = ("+", "-", "*", "min", "max", "abs")
"""Operations that int32 computes exactly, modulo 2**32."""


def check_element_types(
    compute: Compute, tensors: Mapping[str, TensorSpec], ranges: dict[str, ValueRange]
) -> None:
    """Refuse element types that no kernel can be made of; `ranges` gains the range of the output."""
    acc, out, name = compute.acc_dtype, compute.output.dtype, compute.output.name
    read = [tensors[load.tensor] for load in _list_summed_loads(compute.body)]
    if not acc.storable_types:
        near = (read[0].dtype if read else acc).default_accumulator
        raise InvalidInput(
            f"acc_dtype: {name} cannot be summed in {acc}, only in float32 or int32; use {near!r}"
        )
    for spec in read:
        if spec.dtype.name not in acc.summable_types:
            raise InvalidInput(
                f"acc_dtype: {spec.name} is {spec.dtype}, which {acc} cannot sum; "
                f"use {spec.dtype.default_accumulator!r}"
            )
    _check_comparisons(compute, tensors)
    if out.name not in acc.storable_types:
        raise InvalidInput(
            f"out_dtype: {name} is summed in {acc} and cannot be stored as {out}; "
            f"legal are {', '.join(acc.storable_types)}; use {_find_nearest_storable(out, acc)!r}"
        )
    ranges[name] = _find_reduction_range(compute, ranges, tensors) if acc.is_integer else None
    if out is INT8:
        ranges[name] = INT8.integer_limits


def _list_summed_loads(e: ex.Expr) -> Iterator[ex.Load]:
    """The tensor reads that enter the sum: all but those that are only compared."""
    if isinstance(e, ex.Load):
        yield e
        return
    for part in (e.then, e.otherwise) if isinstance(e, ex.Where) else ex.children(e):
        yield from _list_summed_loads(part)


def _check_comparisons(compute: Compute, tensors: Mapping[str, TensorSpec]) -> None:
    """Refuse an int32 compute that compares floats with integers: float32 does not hold all of these."""
    if not compute.acc_dtype.is_integer:
        return
    for e in (x for x in ex.walk_expr(compute.body) if isinstance(x, ex.Where)):
        read = [tensors[x.tensor] for part in (e.a, e.b) for x in ex.find_loads(part)]
        integers = [spec for spec in read if spec.dtype.is_integer]
        if integers and len(integers) < len(read):
            raise InvalidInput(
                f"where: {e.a} {e.op} {e.b} compares {integers[0].name}, which is {integers[0].dtype}, "
                "with floats; use acc_dtype='float32'"
            )


def _find_nearest_storable(out: DType, acc: DType) -> str:
    """A storable type of the same kind if there is one, else the accumulator's own or float32."""
    same_kind = [name for name in acc.storable_types if parse_dtype(name).is_integer == out.is_integer]
    return same_kind[0] if same_kind else acc.name


def _find_reduction_range(
    compute: Compute, ranges: Mapping[str, ValueRange], tensors: Mapping[str, TensorSpec]
) -> ValueRange:
    """The range of an integer compute, partial sums in any order included."""
    extents = {a.name: a.extent for a in compute.axes}
    term_range = _find_range(compute.body, compute.output.name, extents, ranges, tensors)
    if term_range is None or not compute.reduction_axes or compute.combine in ("max", "min"):
        return term_range
    terms = math.prod(a.extent for a in compute.reduction_axes)
    if compute.combine == "prod":
        return _find_product_range(compute, term_range, terms)
    low, high = min(term_range[0], 0), max(term_range[1], 0)
    if not _fits_int32(low * terms, high * terms):
        most = INT32.integer_limits[1] // max(-low, high)
        raise InvalidInput(
            f"acc_dtype: {compute.output.name} sums {terms} terms of up to {max(-low, high)}, which can "
            f"leave int32; use {most} terms, or acc_dtype='float32'"
        )
    return low * terms, high * terms


def _find_product_range(compute: Compute, factor_range: tuple[int, int], terms: int) -> ValueRange:
    """The least and greatest value of a product, partial products in any order included."""
    size = max(abs(factor_range[0]), abs(factor_range[1]))
    # Factors of 2 or more leave int32 within 31 of them.
    most = next((n for n in range(31) if size ** (n + 1) > INT32.integer_limits[1]), terms)
    if terms > most:
        raise InvalidInput(
            f"acc_dtype: {compute.output.name} multiplies {terms} factors of up to {size}, which can leave "
            f"int32; use {most} factors, or acc_dtype='float32'"
        )
    reach = size**terms if size > 1 else size
    return (-reach if factor_range[0] < 0 else 0), reach


def _find_range(
    e: ex.Expr,
    name: str,
    extents: Mapping[str, int],
    ranges: Mapping[str, ValueRange],
    tensors: Mapping[str, TensorSpec],
) -> ValueRange:
    """The values of an integer expression; reads outside a tensor are 0."""
    if isinstance(e, ex.Load):
        if tensors[e.tensor].dtype is INT8:
            return INT8.integer_limits
        span = ranges.get(e.tensor)
        return span and (min(span[0], 0), max(span[1], 0))
    if isinstance(e, ex.Var):
        return _check_int32_range(name, 0, extents[e.name] - 1)
    if isinstance(e, ex.Const) and isinstance(e.value, int):
        return _check_int32_range(name, e.value, e.value)
    if isinstance(e, ex.Where):
        if all(tensors[x.tensor].dtype.is_integer for part in (e.a, e.b) for x in ex.find_loads(part)):
            for part in (e.a, e.b):
                _find_range(part, name, extents, ranges, tensors)
        chosen = [_find_range(part, name, extents, ranges, tensors) for part in (e.then, e.otherwise)]
        both = [span for span in chosen if span is not None]
        return (min(low for low, _ in both), max(high for _, high in both)) if len(both) == 2 else None
    operation = e.op if isinstance(e, ex.Binary) else e.function if isinstance(e, ex.Call) else str(e)
    if operation not in _EXACT_INT32_OPERATIONS:
        types = ", ".join(map(repr, FLOAT32.storable_types))
        raise InvalidInput(
            f"acc_dtype: {operation!r} in the body of {name} is not exact in int32; use 'float32' "
            f"stored as {types} (an epilogue takes out_dtype alone)"
        )
    parts = [_find_range(part, name, extents, ranges, tensors) for part in ex.children(e)]
    ends = _find_operation_range(e, [p for p in parts if p is not None]) if None not in parts else None
    return ends and _check_int32_range(name, *ends)


def _find_operation_range(e: ex.Expr, operand_ranges: list[tuple[int, int]]) -> tuple[int, int]:
    """The least and greatest of an operation on intervals."""
    if isinstance(e, ex.Call):
        low, high = operand_ranges[0]
        return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
    assert isinstance(e, ex.Binary)
    corners = [int(BINARY_FUNCTIONS[e.op](a, b)) for a in operand_ranges[0] for b in operand_ranges[1]]
    return min(corners), max(corners)


def _check_int32_range(name: str, low: int, high: int) -> tuple[int, int]:
    """The interval, if int32 holds it."""
    if not _fits_int32(low, high):
        raise InvalidInput(
            f"acc_dtype: a term of {name} reaches {low if -low > high else high}, beyond int32; use 'float32'"
        )
    return low, high


def _fits_int32(low: int, high: int) -> bool:
    least, most = INT32.integer_limits
    return least <= low and high <= most
