"""The element types of the IR: their names in NumPy and CUDA, and conversions between them.

A compute reads elements, widens each to its accumulator, sums there, and rounds the result once when it
is stored (`ekc.codegen.emit.types`).

tf32 is float32 in memory. Each element is rounded where arithmetic reads it: to 10 bits of significand, to
nearest, halves away from zero (`cvt.rna.tf32.f32`). A product of two is then exact in float32, the sum is
one of float32, and what is stored is float32. The reference rounds the inputs likewise.

A float accumulator is float32: float16 sums would lose digits, and are faster only in packed pairs. An
integer accumulator is int32, with one rule for each input. Sums of int8 are exact: `ekc.ir.compute`
refuses extents with which they could leave int32. Sums and products of int32 inputs wrap modulo 2**32, as in
CUDA and NumPy, in kernel, interpreter and reference; verification reports where one did.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ekc.argument_checks import format_value
from ekc.errors import InvalidInput


@dataclass(frozen=True, repr=False)
class DType:
    """One element type. NumPy takes it wherever it takes a dtype, as in `np.zeros(t.shape, t.dtype)`."""

    name: str
    bytes: int
    """Size of an element in memory, in bytes."""
    cuda_name: str
    """Name of the type in the emitted CUDA text."""
    numpy_dtype: np.dtype[Any]
    """The NumPy type that holds the same values (tf32: float32)."""
    epsilon: float
    """Distance from 1 to the next value of a float type; 0 for integers, which are exact."""
    default_accumulator: str
    """Name of the type that sums of this type are accumulated in by default."""
    default_result: str
    """Name of the type that such sums are stored as by default."""
    storable_types: tuple[str, ...] = ()
    """Types that sums in this accumulator can be stored as; () for a type that is no accumulator."""
    summable_types: tuple[str, ...] = ()
    """Types that this accumulator can sum."""

    @property
    def is_integer(self) -> bool:
        """Whether values of the type are integers, with exact arithmetic."""
        return not self.epsilon

    @property
    def is_writable(self) -> bool:
        """Whether kernels can write tensors of the type: tf32 can only be read."""
        return self.name in parse_dtype(self.default_accumulator).storable_types

    @property
    def integer_limits(self) -> tuple[int, int]:
        """The least and the greatest value of an integer type."""
        half = 1 << (8 * self.bytes - 1)
        return -half, half - 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type, for NumPy 2.0 to 2.3."""
        return self.numpy_dtype

    @property
    def __numpy_dtype__(self) -> np.dtype[Any]:
        """The NumPy type, for NumPy 2.4 and later."""
        return self.numpy_dtype

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    def __reduce__(self) -> tuple[Any, ...]:
        # One object per type, in copies and other processes too: types are compared by identity.
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


_SYNONYMS = {
    **{"half": "float16", "float": "float32", "single": "float32", "double": "float32"},
    **{"char": "int8", "byte": "int8", "bool": "int8", "short": "int32", "int": "int32", "long": "int32"},
}
"""Names of types in C and NumPy that are spelled far from ours, and the nearest types here."""
_BITS_PATTERN = re.compile(r"\b(bf|f|u|i)[a-z]*(4|8|16|32|64|128)(?!\d)")
"""A kind of number and its bits, as in fp16, float64, uint8."""


def parse_dtype(name: str | DType) -> DType:
    """The DType called `name`; `InvalidInput` with the nearest spelling when there is none."""
    if isinstance(name, DType):
        return name
    if isinstance(name, str) and name in _DTYPES:
        return _DTYPES[name]
    word = name if isinstance(name, str) else format_value(name)
    raise InvalidInput(
        f"dtype: no {format_value(name)}; types are {', '.join(_DTYPES)}; nearest is {_suggest_dtype(word)!r}"
    )


def _suggest_dtype(word: str) -> str:
    """The type of the same kind and the nearest width: float32 for float64, int8 for uint8. Otherwise the one
    with the nearest spelling."""
    if word.lower() in _SYNONYMS:
        return _SYNONYMS[word.lower()]
    found = _BITS_PATTERN.search(word.lower())
    if found is None:
        return [*difflib.get_close_matches(word, _DTYPES, n=1, cutoff=0.3), "float32"][0]
    kind, bits = found[1], int(found[2])
    if kind == "bf":
        return "bfloat16"
    if kind == "f":
        return "float16" if bits <= 16 else "float32"
    return "int8" if bits <= 8 else "int32"


def choose_accumulator_and_result(
    dtype: str | DType, acc_dtype: str | None, out_dtype: str | None
) -> tuple[DType, DType]:
    """The (accumulator, result) types of a compute over `dtype`; None takes the default."""
    element = parse_dtype(dtype)
    acc = parse_dtype(element.default_accumulator if acc_dtype is None else acc_dtype)
    usual = element.default_result if element.default_result in acc.storable_types else acc.name
    return acc, parse_dtype(usual if out_dtype is None else out_dtype)


def find_read_type(dtype: DType, acc: DType) -> DType:
    """The accumulator's type for an element, or float32 for a float that an int32 sum only compares."""
    return acc if dtype.name in acc.summable_types else parse_dtype(dtype.default_accumulator)


def find_reduction_identity(combine: str, dtype: DType) -> float | int:
    """The value that a reduction starts from, which changes no other value that it is combined with."""
    if combine in ("sum", "prod"):
        neutral = int(combine == "prod")
        return neutral if dtype.is_integer else float(neutral)
    if dtype.is_integer:
        return dtype.integer_limits[0 if combine == "max" else 1]
    return -math.inf if combine == "max" else math.inf


def round_to_tf32(values: NDArray[Any]) -> NDArray[np.float32]:
    """float32 values rounded to tf32: 10 bits of significand, to nearest, halves away from zero."""
    values = np.ascontiguousarray(values, np.float32)
    # Sign and magnitude: adding half of the last kept bit and cutting rounds both signs away from zero.
    kept = (values.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(values), values, kept.view(np.float32))
