"""Which element types a compute may read, sum in and store, each refusal with the nearest legal choice.

A float accumulator is float32; float16 sums would lose what the type has to give, and need packed pairs to
be any faster. An integer accumulator is int32, with one rule for each input. Sums of int8 are exact: where
their extents would let them leave int32, they are refused. The values of int32 inputs are not known
beforehand: sums and products of those wrap modulo 2**32, as in CUDA and NumPy, in kernel, evaluator and
reference, and verification says where one did.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.dtypes import FLOAT32, INT8, INT32, DType, dtype_of
from ekc.ir.meaning import apply_binary

if TYPE_CHECKING:
    from ekc.ir.operator import Compute, TensorSpec

Span = tuple[int, int] | None
"""Least and greatest value; None where nothing is known but the type."""
_EXACT = ("+", "-", "*", "min", "max", "abs")
"""Operations that int32 computes exactly, modulo 2**32; a quotient or a root is none."""


def check_types(compute: Compute, known: Mapping[str, TensorSpec], spans: dict[str, Span]) -> None:
    """Refuse element types that no kernel can be made of; `spans` gains what the output can hold."""
    acc, out, name = compute.acc_dtype, compute.output.dtype, compute.output.name
    read = [known[load.tensor] for load in _list_summed(compute.body)]
    if not acc.storable:
        near = dtype_of(read[0].dtype.accumulator) if read else dtype_of(acc.accumulator)
        raise InvalidInput(
            f"acc_dtype: {name} cannot be summed in {acc}, only in float32 or int32; "
            f"the nearest is {near.name!r}"
        )
    for spec in read:
        if spec.dtype.name not in acc.summable:
            raise InvalidInput(
                f"acc_dtype: {spec.name} is {spec.dtype}, which {acc} cannot sum; "
                f"the nearest is {spec.dtype.accumulator!r}"
            )
    _check_comparisons(compute, known)
    if out.name not in acc.storable:
        raise InvalidInput(
            f"out_dtype: {name} is summed in {acc} and cannot be stored as {out}; "
            f"legal are {', '.join(acc.storable)}, the nearest is {_nearest(out, acc)!r}"
        )
    spans[name] = _sum_span(compute, spans, known) if acc.integer else None
    if out is INT8:
        spans[name] = INT8.limits


def _list_summed(e: ex.Expr) -> Iterator[ex.Load]:
    """The reads that the accumulator works with: all but those that are only compared."""
    if isinstance(e, ex.Load):
        yield e
        return
    for part in (e.then, e.otherwise) if isinstance(e, ex.Where) else ex.children(e):
        yield from _list_summed(part)


def _compares_floats(e: ex.Where, known: Mapping[str, TensorSpec]) -> bool:
    return any(not known[x.tensor].dtype.integer for part in (e.a, e.b) for x in ex.loads(part))


def _check_comparisons(compute: Compute, known: Mapping[str, TensorSpec]) -> None:
    """Refuse an int32 compute that compares floats with integers: float32 does not hold all of these."""
    for e in ex.walk(compute.body):
        if not compute.acc_dtype.integer or not isinstance(e, ex.Where) or not _compares_floats(e, known):
            continue
        read = (known[x.tensor] for part in (e.a, e.b) for x in ex.loads(part))
        for spec in read:
            if spec.dtype.integer:
                raise InvalidInput(
                    f"where: {e.a} {e.op} {e.b} compares {spec.name}, which is {spec.dtype}, with floats; "
                    "the nearest is acc_dtype='float32'"
                )


def _nearest(out: DType, acc: DType) -> str:
    """A storable type of the same kind if there is one, else the accumulator's own or float32."""
    alike = [name for name in acc.storable if dtype_of(name).integer == out.integer]
    return alike[0] if alike else acc.name


def _sum_span(compute: Compute, spans: Mapping[str, Span], known: Mapping[str, TensorSpec]) -> Span:
    """What an integer compute can reach, partial sums in any order included."""
    extents = {a.name: a.extent for a in compute.axes}
    one = _span(compute.body, compute.output.name, extents, spans, known)
    if one is None or not compute.reduction or compute.combine in ("max", "min"):
        return one
    terms = math.prod(a.extent for a in compute.reduction)
    if compute.combine == "prod":
        return _find_product_span(compute, one, terms)
    low, high = min(one[0], 0), max(one[1], 0)
    if not _fits(low * terms, high * terms):
        most = INT32.limits[1] // max(-low, high)
        raise InvalidInput(
            f"acc_dtype: {compute.output.name} sums {terms} terms of up to {max(-low, high)}, which can "
            f"leave int32; the nearest is {most} terms, or acc_dtype='float32'"
        )
    return low * terms, high * terms


def _find_product_span(compute: Compute, one: tuple[int, int], terms: int) -> Span:
    """The least and greatest value of a product, partial products in any order included."""
    size = max(abs(one[0]), abs(one[1]))
    # Factors of 2 or more leave int32 within 31 of them.
    most = next((n for n in range(31) if size ** (n + 1) > INT32.limits[1]), terms)
    if terms > most:
        raise InvalidInput(
            f"acc_dtype: {compute.output.name} multiplies {terms} factors of up to {size}, which can leave "
            f"int32; the nearest is {most} factors, or acc_dtype='float32'"
        )
    reach = size**terms if size > 1 else size
    return (-reach if one[0] < 0 else 0), reach


def _span(
    e: ex.Expr,
    name: str,
    extents: Mapping[str, int],
    spans: Mapping[str, Span],
    known: Mapping[str, TensorSpec],
) -> Span:
    """The values of an integer expression; reads outside a tensor are 0."""
    if isinstance(e, ex.Load):
        if known[e.tensor].dtype is INT8:
            return INT8.limits
        span = spans.get(e.tensor)
        return span and (min(span[0], 0), max(span[1], 0))
    if isinstance(e, ex.Var):
        return _held(name, 0, extents[e.name] - 1)
    if isinstance(e, ex.Const) and isinstance(e.value, int):
        return _held(name, e.value, e.value)
    if isinstance(e, ex.Where):
        if not _compares_floats(e, known):
            for part in (e.a, e.b):
                _span(part, name, extents, spans, known)
        chosen = [_span(part, name, extents, spans, known) for part in (e.then, e.otherwise)]
        both = [span for span in chosen if span is not None]
        return (min(low for low, _ in both), max(high for _, high in both)) if len(both) == 2 else None
    what = e.op if isinstance(e, ex.Binary) else e.function if isinstance(e, ex.Call) else str(e)
    if what not in _EXACT:
        raise InvalidInput(
            f"acc_dtype: {what!r} in the body of {name} is not exact in int32; the nearest is 'float32', "
            f"stored as {', '.join(map(repr, FLOAT32.storable))} (an epilogue takes out_dtype alone)"
        )
    parts = [_span(part, name, extents, spans, known) for part in ex.children(e)]
    ends = _ends(e, [p for p in parts if p is not None]) if None not in parts else None
    return ends and _held(name, *ends)


def _ends(e: ex.Expr, parts: list[tuple[int, int]]) -> tuple[int, int]:
    """The least and greatest of an operation on intervals."""
    if isinstance(e, ex.Call):
        low, high = parts[0]
        return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
    assert isinstance(e, ex.Binary)
    corners = [int(apply_binary(e.op, a, b)) for a in parts[0] for b in parts[1]]
    return min(corners), max(corners)


def _held(name: str, low: int, high: int) -> tuple[int, int]:
    """The interval, if int32 holds it."""
    if not _fits(low, high):
        raise InvalidInput(
            f"acc_dtype: a term of {name} reaches {low if -low > high else high}, beyond int32; "
            "the nearest is 'float32'"
        )
    return low, high


def _fits(low: int, high: int) -> bool:
    least, most = INT32.limits
    return least <= low and high <= most
