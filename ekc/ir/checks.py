"""Checks of values that come from outside, each with its one clear line."""

from __future__ import annotations

import inspect
import keyword
import operator as _operator
import re
import unicodedata
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ekc.errors import InvalidInput
from ekc.ir.arguments import MAX_SHOWN, show

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_WORDS = """
auto bool break case catch char class const continue default delete do double else enum export extern false
float for goto half_t if inline int long namespace new operator private protected public register
restrict return short signed sizeof static struct switch template this throw true try typedef union
unsigned using virtual void volatile while blockIdx threadIdx blockDim gridDim warpSize alignas
__global__ __device__ __shared__ min max
"""
_RESERVED = frozenset(_WORDS.split())


def identifier(what: str, name: Any) -> str:
    """A name that is safe in CUDA text: a letter, then letters, digits and underscores, no keyword."""
    if not isinstance(name, str) or not _IDENTIFIER.match(name):
        raise InvalidInput(
            f"{what}: {show(name)} is not an identifier (a letter from a to z, then letters, digits, _); "
            f"try {_nearest_identifier(name if isinstance(name, str) else show(name))!r}"
        )
    if name in _RESERVED or keyword.iskeyword(name):
        raise InvalidInput(
            f"{what}: {name!r} is a reserved word of C++ or of the generated code; try {name + '_'!r}"
        )
    return name


def _nearest_identifier(name: str) -> str:
    """A legal name that looks like this one: accents are dropped, other characters become underscores."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    near = re.sub(r"[^A-Za-z0-9_]", "_", plain).lstrip("0123456789_")[:MAX_SHOWN] or "a"
    return near + "_" * (near in _RESERVED or keyword.iskeyword(near))


def _rounded(value: Any, otherwise: int) -> int:
    """The whole number next to a number, or to the text of one."""
    try:
        return round(float(value))
    except (TypeError, ValueError, OverflowError):
        return otherwise


def whole(what: str, value: Any, limit: int, least: int = 1) -> int:
    """A whole number from `least` to `limit`."""
    try:
        number = _operator.index(value)
    except TypeError:
        raise InvalidInput(
            f"{what}: {show(value)} is not a whole number; the nearest legal value is "
            f"{min(max(least, _rounded(value, least)), limit)}"
        ) from None
    if isinstance(value, bool) or not least <= number <= limit:
        near = min(max(number, least), limit)
        raise InvalidInput(
            f"{what}: {show(value)} is outside {least} to {limit}; the nearest legal value is {near}"
        )
    return number


def several(value: Any) -> tuple[Any, ...] | None:
    """A tuple, list, range or array as a tuple; None for one value by itself."""
    if isinstance(value, np.ndarray):
        return tuple(value.tolist()) if value.ndim else None
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else None


def parameters(body: Callable[..., Any], given: Collection[str]) -> list[str] | None:
    """What a body asks for: its parameters, but those that have a default and are none of the `given`. None
    for what is no function, or one of Python's own that does not tell."""
    try:
        asked = inspect.signature(body).parameters
    except (TypeError, ValueError):
        return None
    return [name for name, p in asked.items() if p.default is p.empty or name in given]
