"""Checks of values that come from outside, each with a message of one line; unique names."""

from __future__ import annotations

import inspect
import keyword
import operator as _operator
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from ekc.argument_checks import MAX_VALUE_CHARS, format_value
from ekc.errors import InvalidInput

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_RESERVED_TEXT = """
auto bool break case catch char class const continue default delete do double else enum export extern false
float for goto half_t if inline int long namespace new operator private protected public register
restrict return short signed sizeof static struct switch template this throw true try typedef union
unsigned using virtual void volatile while blockIdx threadIdx blockDim gridDim warpSize alignas
__global__ __device__ __shared__ min max
"""
_RESERVED_WORDS = frozenset(_RESERVED_TEXT.split())


def is_identifier(name: str) -> bool:
    """Whether `check_identifier` accepts a name."""
    return bool(_IDENTIFIER.match(name)) and name not in _RESERVED_WORDS and not keyword.iskeyword(name)


def check_identifier(label: str, name: Any) -> str:
    """A name that is safe in CUDA text: a letter, then letters, digits and underscores; no keyword."""
    if not isinstance(name, str) or not _IDENTIFIER.match(name):
        raise InvalidInput(
            f"{label}: {format_value(name)} is not an identifier (a letter from a to z, then letters, "
            f"digits, _); try {_suggest_identifier(name if isinstance(name, str) else format_value(name))!r}"
        )
    if not is_identifier(name):
        raise InvalidInput(
            f"{label}: {name!r} is a reserved word of C++ or of the generated code; try {name + '_'!r}"
        )
    return name


_SPECIAL_NAME = "cutlass"
"""Part of a kernel's name for which ptxas chooses other machine code: 55 registers become 64."""


def check_kernel_name(label: str, name: Any) -> str:
    """An identifier that becomes a part of the name of a kernel; see `check_name_part`."""
    return check_name_part(label, check_identifier(label, name))


def check_name_part(label: str, name: str) -> str:
    """A text that becomes a part of the name of a kernel. One with "cutlass" in it is refused: ptxas chooses
    other machine code for such kernels, so that figures of one name would not hold for another."""
    if _SPECIAL_NAME in name:
        raise InvalidInput(
            f"{label}: ptxas compiles a kernel with {_SPECIAL_NAME!r} in its name differently, and "
            f"{format_value(name)} contains it; try {replace_special_name(name)!r}"
        )
    return name


def replace_special_name(name: str) -> str:
    """The name without the part that ptxas treats specially: `cutlass_mm` -> `cut_lass_mm`."""
    return name.replace(_SPECIAL_NAME, "cut_lass")


def _suggest_identifier(name: str) -> str:
    """A legal name that looks like this one: accents are dropped, other characters become underscores."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    near = re.sub(r"[^A-Za-z0-9_]", "_", plain).lstrip("0123456789_")[:MAX_VALUE_CHARS] or "a"
    return replace_special_name(near + "_" * (near in _RESERVED_WORDS or keyword.iskeyword(near)))


def _round_to_int(value: Any, default: int) -> int:
    """The whole number next to a number, or to the text of one."""
    try:
        return round(float(value))
    except (TypeError, ValueError, OverflowError):
        return default


def check_int(label: str, value: Any, maximum: int, minimum: int = 1) -> int:
    """An integer from `minimum` to `maximum`."""
    try:
        number = _operator.index(value)
    except TypeError:
        raise InvalidInput(
            f"{label}: {format_value(value)} is not a whole number; use "
            f"{min(max(minimum, _round_to_int(value, minimum)), maximum)}"
        ) from None
    if isinstance(value, bool):
        raise InvalidInput(
            f"{label}: {value} is not a whole number; use {min(max(number, minimum), maximum)}"
        )
    if number < minimum:
        raise InvalidInput(f"{label}: {format_value(value)}, at least {minimum}; use {minimum}")
    if number > maximum:
        raise InvalidInput(f"{label}: {format_value(value)}, at most {maximum}; use {maximum} or fewer")
    return number


def to_tuple(value: Any) -> tuple[Any, ...] | None:
    """A tuple, list, range or array as a tuple; None for a single value."""
    if isinstance(value, np.ndarray):
        return tuple(value.tolist()) if value.ndim else None
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else None


MAX_DIMENSIONS = 64
"""Most dimensions of a tensor, as in NumPy."""


def check_shape_value(name: str, shape: Any) -> Any:
    """The value; `InvalidInput` for an array of numbers in place of its shape, and for a shape of more than
    `MAX_DIMENSIONS` extents."""
    if isinstance(shape, np.ndarray) and not (shape.ndim == 1 and shape.dtype.kind in "iu"):
        raise InvalidInput(f"shape of {name}: this is an array; give its shape {shape.shape}")
    if isinstance(shape, np.ndarray | Sequence) and len(shape) > MAX_DIMENSIONS:
        raise InvalidInput(f"shape of {name}: {len(shape)} dimensions, at most {MAX_DIMENSIONS}; join some")
    return shape


def list_required_parameters(body: Callable[..., Any], inputs: Collection[str]) -> list[str] | None:
    """The parameters that a body needs: those without a default, and those named in `inputs`. None for an
    object that is no function, and for built-in functions without a signature."""
    try:
        asked = inspect.signature(body).parameters
    except (TypeError, ValueError):
        return None
    return [name for name, p in asked.items() if p.default is p.empty or name in inputs]


def make_unique_name(name: str, taken: set[str]) -> str:
    """The name, with as many underscores appended as make it unique; it is added to `taken`."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name


MAX_EXPR_DEPTH = 200
"""Most levels of operations inside operations; Python ends a recursion at some 1000 calls."""
MAX_EXPR_NODES = 5000
"""Most operations, numbers and reads of an expression that is written out as a tree."""
T = TypeVar("T")


def check_size(label: str, root: T, children: Callable[[T], Iterable[T]]) -> T:
    """The root of a tree; `InvalidInput` where it is deeper than `MAX_EXPR_DEPTH`, or has more nodes than
    `MAX_EXPR_NODES`. A node that is used in several places counts in each."""
    level = [(root, 1)]
    count = 0
    for _ in range(MAX_EXPR_DEPTH):
        uses: dict[int, tuple[T, int]] = {}
        for node, times in level:
            for x in children(node):
                uses[id(x)] = (x, times + uses.get(id(x), (x, 0))[1])
        count += sum(times for _, times in level)
        if count > MAX_EXPR_NODES:
            raise InvalidInput(
                f"body of {label}: more than {MAX_EXPR_NODES} operations, numbers and reads; use a reduction "
                "axis, or several computes"
            )
        if not uses:
            return root
        level = list(uses.values())
    raise InvalidInput(
        f"body of {label}: goes deeper than {MAX_EXPR_DEPTH} operations inside one another; "
        "use a reduction axis, or several computes"
    )
