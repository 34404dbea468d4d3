"""The element types of the IR: what each is called in NumPy and in CUDA, and how values pass between them.

A compute reads elements, widens each to its accumulator, sums there, and rounds the result once when it
is stored. `converted` is that passage, for arrays; `ekc.codegen.emit.types` writes the same in C.

tf32 is float32 in memory. Each element is rounded where arithmetic reads it: to 10 bits of significand, to
nearest, halves away from zero (`cvt.rna.tf32.f32`). A product of two is then exact in float32, the sum is
one of float32, and what is stored is float32. The reference rounds the inputs likewise.

Which element types a compute may read, sum in and store, each refusal with the nearest legal choice.

A float accumulator is float32; float16 sums would lose what the type has to give, and need packed pairs to
be any faster. An integer accumulator is int32, with one rule for each input. Sums of int8 are exact: where
their extents would let them leave int32, they are refused. The values of int32 inputs are not known
beforehand: sums and products of those wrap modulo 2**32, as in CUDA and NumPy, in kernel, evaluator and
reference, and verification says where one did.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ekc.arguments import format_value
from ekc.errors import InvalidInput
from ekc.ir import expr as ex
from ekc.ir.functions import apply_binary

if TYPE_CHECKING:
    from ekc.ir.operator import Compute, TensorSpec


@dataclass(frozen=True, repr=False)
class DType:
    """One element type. NumPy takes it wherever it takes a dtype, as in `np.zeros(t.shape, t.dtype)`."""

    name: str
    bytes: int
    """Size in memory."""
    cuda_name: str
    """Its type name in the emitted CUDA text."""
    numpy_dtype: np.dtype[Any]
    """The NumPy type that holds the same values (tf32: float32)."""
    epsilon: float
    """Distance from 1 to the next value of a float type; 0 for integers, which are exact."""
    default_accumulator: str
    """What sums of it are kept in, unless told otherwise."""
    default_result: str
    """What such sums are stored as, unless told otherwise."""
    storable_types: tuple[str, ...] = ()
    """As an accumulator: the types its sums can be stored as; () for a type that accumulates nothing."""
    summable_types: tuple[str, ...] = ()
    """As an accumulator: the types it can sum."""

    @property
    def is_integer(self) -> bool:
        """Whether its values are whole numbers, and arithmetic on them exact."""
        return not self.epsilon

    @property
    def is_writable(self) -> bool:
        """Whether kernels write tensors of it: tf32 is only read."""
        return self.name in parse_dtype(self.default_accumulator).storable_types

    @property
    def integer_limits(self) -> tuple[int, int]:
        """The least and the greatest value of an integer type."""
        half = 1 << (8 * self.bytes - 1)
        return -half, half - 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type, under the name by which NumPy 2.0 to 2.3 ask for it."""
        return self.numpy_dtype

    @property
    def __numpy_dtype__(self) -> np.dtype[Any]:
        """The same, for NumPy 2.4 and later."""
        return self.numpy_dtype

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    def __reduce__(self) -> tuple[Any, ...]:
        # One object per type, in copies and other processes too: types are told apart by identity.
        return parse_dtype, (self.name,)


_FLOAT_NAMES, _INT_NAMES = ("float32", "float16", "bfloat16"), ("int8", "int32")
_BFLOAT16_NUMPY = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = DType(
    "float32", 4, "float", np.dtype(np.float32), 2.0**-23, "float32", "float32",
    storable_types=_FLOAT_NAMES, summable_types=(*_FLOAT_NAMES, "tf32", *_INT_NAMES),
)  # fmt: skip
TF32 = DType("tf32", 4, "float", np.dtype(np.float32), 2.0**-10, "float32", "float32")
FLOAT16 = DType("float16", 2, "half_t", np.dtype(np.float16), 2.0**-10, "float32", "float16")
BFLOAT16 = DType("bfloat16", 2, "bf16_t", _BFLOAT16_NUMPY, 2.0**-7, "float32", "bfloat16")
INT8 = DType("int8", 1, "signed char", np.dtype(np.int8), 0.0, "int32", "int32")
INT32 = DType(
    "int32", 4, "int", np.dtype(np.int32), 0.0, "int32", "int32",
    storable_types=("int32", "int8", "float32"), summable_types=_INT_NAMES,
)  # fmt: skip
_DTYPES = {d.name: d for d in (FLOAT32, TF32, FLOAT16, BFLOAT16, INT8, INT32)}
DTYPE_NAMES = tuple(_DTYPES)
"""Every element type."""


_C_SYNONYMS = {"half": ["float16"], "float": ["float32"], "double": ["float32"], "char": ["int8"]}
"""What C calls some of them: the spelling is far from ours."""


def parse_dtype(name: str | DType) -> DType:
    """The DType called `name`; `InvalidInput` with the nearest spelling when there is none."""
    if isinstance(name, DType):
        return name
    if isinstance(name, str) and name in _DTYPES:
        return _DTYPES[name]
    word = name if isinstance(name, str) else format_value(name)
    near = _C_SYNONYMS.get(word) or difflib.get_close_matches(word, _DTYPES, n=1, cutoff=0.3)
    raise InvalidInput(
        f"dtype: {format_value(name)} is not one of {', '.join(_DTYPES)}; the nearest is {(near or ['float32'])[0]!r}"
    )


def choose_accumulator_and_result(
    dtype: str | DType, acc_dtype: str | None, out_dtype: str | None
) -> tuple[DType, DType]:
    """What a compute over `dtype` is summed in and stored as, where one or both are left to the default."""
    element = parse_dtype(dtype)
    acc = parse_dtype(element.default_accumulator if acc_dtype is None else acc_dtype)
    usual = element.default_result if element.default_result in acc.storable_types else acc.name
    return acc, parse_dtype(usual if out_dtype is None else out_dtype)


def find_read_type(dtype: DType, acc: DType) -> DType:
    """The type of an element in the arithmetic of an accumulator: that of the accumulator, or float32 of a
    float that an int32 accumulator does not sum but compares."""
    return acc if dtype.name in acc.summable_types else parse_dtype(dtype.default_accumulator)


def find_reduction_identity(combine: str, dtype: DType) -> float | int:
    """What a reduction starts from: nothing it meets is changed by it."""
    if combine in ("sum", "prod"):
        neutral = int(combine == "prod")
        return neutral if dtype.is_integer else float(neutral)
    if dtype.is_integer:
        return dtype.integer_limits[0 if combine == "max" else 1]
    return -math.inf if combine == "max" else math.inf


def find_poison_value(dtype: DType) -> float | int:
    """What on-chip memory is filled with before anything is stored: NaN, or a number that spoils any sum."""
    return dtype.integer_limits[0] + 1 if dtype.is_integer else math.nan


def convert_values(values: NDArray[Any], source: DType, target: DType) -> NDArray[Any]:
    """Elements of type `source` as elements of type `target`, as a kernel converts them.

    One rounding to nearest even into a float type; tf32 is rounded where it is read; int32 to int8 is
    clamped to -128 to 127.
    """
    if source is target:
        return values
    if source is TF32:
        values = round_to_tf32(values)
    if target is INT8:
        values = np.clip(values, *INT8.integer_limits)
    return values.astype(target.numpy_dtype)


def round_to_tf32(values: NDArray[Any]) -> NDArray[np.float32]:
    """float32 values rounded to tf32: 10 bits of significand, to nearest, halves away from zero."""
    values = np.ascontiguousarray(values, np.float32)
    # Sign and magnitude: adding half of the last kept bit and cutting rounds both signs away from zero.
    kept = (values.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(values), values, kept.view(np.float32))


ValueRange = tuple[int, int] | None
"""Least and greatest value; None where nothing is known but the type."""
_EXACT_INT32_OPERATIONS = ("+", "-", "*", "min", "max", "abs")
"""Operations that int32 computes exactly, modulo 2**32; a quotient or a root is none."""


def check_element_types(
    compute: Compute, tensors: Mapping[str, TensorSpec], ranges: dict[str, ValueRange]
) -> None:
    """Refuse element types that no kernel can be made of; `spans` gains what the output can hold."""
    acc, out, name = compute.acc_dtype, compute.output.dtype, compute.output.name
    read = [tensors[load.tensor] for load in _list_summed_loads(compute.body)]
    if not acc.storable_types:
        near = (
            parse_dtype(read[0].dtype.default_accumulator) if read else parse_dtype(acc.default_accumulator)
        )
        raise InvalidInput(
            f"acc_dtype: {name} cannot be summed in {acc}, only in float32 or int32; "
            f"the nearest is {near.name!r}"
        )
    for spec in read:
        if spec.dtype.name not in acc.summable_types:
            raise InvalidInput(
                f"acc_dtype: {spec.name} is {spec.dtype}, which {acc} cannot sum; "
                f"the nearest is {spec.dtype.default_accumulator!r}"
            )
    _check_comparisons(compute, tensors)
    if out.name not in acc.storable_types:
        raise InvalidInput(
            f"out_dtype: {name} is summed in {acc} and cannot be stored as {out}; "
            f"legal are {', '.join(acc.storable_types)}, the nearest is {_find_nearest_storable(out, acc)!r}"
        )
    ranges[name] = _find_reduction_range(compute, ranges, tensors) if acc.is_integer else None
    if out is INT8:
        ranges[name] = INT8.integer_limits


def _list_summed_loads(e: ex.Expr) -> Iterator[ex.Load]:
    """The reads that the accumulator works with: all but those that are only compared."""
    if isinstance(e, ex.Load):
        yield e
        return
    for part in (e.then, e.otherwise) if isinstance(e, ex.Where) else ex.children(e):
        yield from _list_summed_loads(part)


def _has_float_comparison(e: ex.Where, tensors: Mapping[str, TensorSpec]) -> bool:
    return any(not tensors[x.tensor].dtype.is_integer for part in (e.a, e.b) for x in ex.find_loads(part))


def _check_comparisons(compute: Compute, tensors: Mapping[str, TensorSpec]) -> None:
    """Refuse an int32 compute that compares floats with integers: float32 does not hold all of these."""
    for e in ex.walk_expr(compute.body):
        if (
            not compute.acc_dtype.is_integer
            or not isinstance(e, ex.Where)
            or not _has_float_comparison(e, tensors)
        ):
            continue
        read = (tensors[x.tensor] for part in (e.a, e.b) for x in ex.find_loads(part))
        for spec in read:
            if spec.dtype.is_integer:
                raise InvalidInput(
                    f"where: {e.a} {e.op} {e.b} compares {spec.name}, which is {spec.dtype}, with floats; "
                    "the nearest is acc_dtype='float32'"
                )


def _find_nearest_storable(out: DType, acc: DType) -> str:
    """A storable type of the same kind if there is one, else the accumulator's own or float32."""
    alike = [name for name in acc.storable_types if parse_dtype(name).is_integer == out.is_integer]
    return alike[0] if alike else acc.name


def _find_reduction_range(
    compute: Compute, ranges: Mapping[str, ValueRange], tensors: Mapping[str, TensorSpec]
) -> ValueRange:
    """What an integer compute can reach, partial sums in any order included."""
    extents = {a.name: a.extent for a in compute.axes}
    one = _find_range(compute.body, compute.output.name, extents, ranges, tensors)
    if one is None or not compute.reduction_axes or compute.combine in ("max", "min"):
        return one
    terms = math.prod(a.extent for a in compute.reduction_axes)
    if compute.combine == "prod":
        return _find_product_range(compute, one, terms)
    low, high = min(one[0], 0), max(one[1], 0)
    if not _fits_int32(low * terms, high * terms):
        most = INT32.integer_limits[1] // max(-low, high)
        raise InvalidInput(
            f"acc_dtype: {compute.output.name} sums {terms} terms of up to {max(-low, high)}, which can "
            f"leave int32; the nearest is {most} terms, or acc_dtype='float32'"
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
            f"int32; the nearest is {most} factors, or acc_dtype='float32'"
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
        if not _has_float_comparison(e, tensors):
            for part in (e.a, e.b):
                _find_range(part, name, extents, ranges, tensors)
        chosen = [_find_range(part, name, extents, ranges, tensors) for part in (e.then, e.otherwise)]
        both = [span for span in chosen if span is not None]
        return (min(low for low, _ in both), max(high for _, high in both)) if len(both) == 2 else None
    what = e.op if isinstance(e, ex.Binary) else e.function if isinstance(e, ex.Call) else str(e)
    if what not in _EXACT_INT32_OPERATIONS:
        raise InvalidInput(
            f"acc_dtype: {what!r} in the body of {name} is not exact in int32; the nearest is 'float32', "
            f"stored as {', '.join(map(repr, FLOAT32.storable_types))} (an epilogue takes out_dtype alone)"
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
    corners = [int(apply_binary(e.op, a, b)) for a in operand_ranges[0] for b in operand_ranges[1]]
    return min(corners), max(corners)


def _check_int32_range(name: str, low: int, high: int) -> tuple[int, int]:
    """The interval, if int32 holds it."""
    if not _fits_int32(low, high):
        raise InvalidInput(
            f"acc_dtype: a term of {name} reaches {low if -low > high else high}, beyond int32; "
            "the nearest is 'float32'"
        )
    return low, high


def _fits_int32(low: int, high: int) -> bool:
    least, most = INT32.integer_limits
    return least <= low and high <= most
