"""Checks of arguments, each with a message of one line. Imports no NumPy, which the governor runs without."""

from __future__ import annotations

import difflib
import numbers
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ekc.errors import InvalidInput

MAX_VALUE_CHARS = 80
"""Most characters of a value in a message."""


def format_value(value: Any) -> str:
    """A value as a message shows it: on one line, and cut where it is long."""
    try:
        text = repr(value)
    except Exception:
        # An integer of thousands of digits, or an object whose class cannot print it.
        return f"this {type(value).__name__}"
    text = " ".join(text.split()) if "\n" in text else text
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[: MAX_VALUE_CHARS - 3]}..."


def check_choice(
    label: str, value: Any, choices: Collection[str], synonyms: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The value, if it is one of `choices`. `synonyms` maps names of other libraries to the nearest
    choice."""
    if not isinstance(value, str) or value not in choices:
        word = value if isinstance(value, str) else format_value(value)
        near = synonyms.get(word) or difflib.get_close_matches(word, choices, n=1, cutoff=0.0)[0]
        raise InvalidInput(
            f"{label}: no {format_value(value)}; choices are {', '.join(choices)}; nearest is {near!r}"
        )
    return value


def check_text(label: str, value: Any, example: str) -> str:
    """The value, if it is a text that can be written in UTF-8; the message shows `example`."""
    if not isinstance(value, str):
        raise InvalidInput(f"{label}: {format_value(value)} is not a text; write {example}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"{label}: {format_value(value)} holds half a character; write {example}"
        ) from None
    return value


def check_flag(label: str, value: Any) -> bool:
    """The value as a bool, if it is True or False. A text such as "false" is refused, as it would count as
    true."""
    # The type of a NumPy bool is recognised by its name, as this module does not import NumPy.
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
        raise InvalidInput(f"{label}: {format_value(value)} is neither True nor False")
    return bool(value)


def check_mapping(label: str, value: Any, example: str) -> Mapping[Any, Any]:
    """The value, if it is a mapping; the message shows `example`."""
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{label}: {format_value(value)} holds no values by name; write {example}")
    return value


def check_path(label: str, value: Any) -> Path:
    """The value as a path of a file or folder."""
    if not isinstance(value, (str, os.PathLike)) or "\0" in str(value):
        raise InvalidInput(f"{label}: {format_value(value)} is not a path; give a text or a pathlib.Path")
    return Path(value)


def is_number(value: Any) -> bool:
    """Whether a value is a real number, of Python or NumPy, that a float can hold, and no truth value."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def refuse_mask(name: str, array: Any) -> None:
    """Refuse a masked array of NumPy whose mask hides elements: a kernel would read them all the same."""
    if any(kind.__name__ == "MaskedArray" for kind in type(array).__mro__) and array.mask.any():
        raise InvalidInput(
            f"{name} is a masked array with masked elements, and a kernel has no mask; pass {name}.filled(0)"
        )
