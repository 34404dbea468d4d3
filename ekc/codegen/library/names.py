"""Name and version of a library: what is legal, the nearest legal choice, and names that are made."""

from __future__ import annotations

import re

from ekc.argument_checks import check_text
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.ir.validate import check_identifier, is_identifier

MAX_NAME = 40
"""Characters of a name, at most: it is a part of every symbol."""
_TAKEN_NAMES = frozenset({"std", "ekc"})
"""Namespaces that the namespace of the bundle would hide."""
_LOWER_CASE_MACROS = frozenset({"linux", "unix", "i386", "stdin", "stdout", "stderr", "errno"})
"""Macros without parameters of compilers and of the C library."""
_VERSION = re.compile(r"(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\Z", re.ASCII)


def check_bundle_name(name: str) -> str:
    """Check the name of a bundle: a C++ name of lower-case letters, digits and `_`. Raises `InvalidInput`."""
    if isinstance(name, str) and _has_meaning(name):
        raise InvalidInput(f"--name: {name!r} has a meaning in C++ already; try '{name}_kernels'")
    check_identifier("--name", name)
    if len(name) > MAX_NAME:
        raise InvalidInput(
            f"--name: {name[:20]}... has {len(name)} characters, at most {MAX_NAME}; try {name[:MAX_NAME]!r}"
        )
    if name != name.lower() or "__" in name or name.endswith("_"):
        near = re.sub("_+", "_", name.lower()).strip("_")
        raise InvalidInput(
            f"--name: {name!r} is not in lower case with single underscores inside; try {near!r}"
        )
    return name


def _has_meaning(name: str) -> bool:
    """Whether a name is a word of C++, a macro, or a namespace that the library would hide."""
    is_word = not is_identifier(name) and is_identifier(f"{name}_kernels")
    return is_word or name in _TAKEN_NAMES | _LOWER_CASE_MACROS


def may_be_macro(name: str) -> bool:
    """Whether a C header may define a name as a macro: "M_PI", "linux"."""
    return name in _LOWER_CASE_MACROS or bool(re.fullmatch("[A-Z][A-Z0-9_]*[A-Z0-9]", name))


def check_bundle_version(version: str) -> str:
    """Check the version of a bundle: three whole numbers, as 1.2.3. Raises `InvalidInput`."""
    if not _VERSION.match(check_text("--version", version, "'0.1.0'")):
        numbers = [str(int(n)) for n in re.findall(r"[0-9]+", version)[:3] if len(n) < 10]
        near = ".".join([*numbers, "0", "0", "0"][:3]) if numbers else "0.1.0"
        raise InvalidInput(
            f"--version: {version!r:.60} is not three whole numbers with dots, MAJOR.MINOR.PATCH; try {near}"
        )
    return version


def make_library_name(text: str) -> str:
    """Make a legal name of a library: `Act-D` -> `act_d`, `2layers.toml` -> `library_2layers_toml`."""
    name = re.sub("[^a-z0-9]+", "_", text.lower()).strip("_") or "library"
    if name[0].isdigit():
        name = f"library_{name}"
    name = name[:MAX_NAME].rstrip("_")
    try:
        return check_bundle_name(name)
    except InvalidInput:
        return check_bundle_name(f"{name[: MAX_NAME - 8]}_library")


def name_library(name: str | None, op: Operator) -> str:
    """Name of the library of one operator: the given one, checked, or one made of the operator's."""
    return make_library_name(op.name) if name is None else check_bundle_name(name)
