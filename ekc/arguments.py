"""Arguments of the wrong type, each refused in one line. Needs no NumPy: a governor of jobs has none."""

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
"""Characters of a value in a message."""


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
    """One of the known names; `synonyms` are names elsewhere that are spelled far from ours."""
    if not isinstance(value, str) or value not in choices:
        word = value if isinstance(value, str) else format_value(value)
        near = synonyms.get(word) or difflib.get_close_matches(word, choices, n=1, cutoff=0.0)[0]
        raise InvalidInput(
            f"{label}: no {format_value(value)}; choices are {', '.join(choices)}; nearest is {near!r}"
        )
    return value


def check_text(label: str, value: Any, example: str) -> str:
    """A text that can be written in UTF-8."""
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
    """True or False: "false" and the like would count as true."""
    # NumPy's truth values are known by the name of their type: this module does not import NumPy.
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
        raise InvalidInput(f"{label}: {format_value(value)} is neither True nor False")
    return bool(value)


def check_mapping(label: str, value: Any, example: str) -> Mapping[Any, Any]:
    """Values by name."""
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{label}: {format_value(value)} holds no values by name; write {example}")
    return value


def check_path(label: str, value: Any) -> Path:
    """The name of a file or a folder."""
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
