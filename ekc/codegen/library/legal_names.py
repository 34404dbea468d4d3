"""Name and version of a library: what is legal, the nearest legal choice, and names that are made."""

from __future__ import annotations

import re

from ekc.argument_checks import check_text, format_value
from ekc.errors import InvalidInput
from ekc.ir.operator import Operator
from ekc.ir.validate import check_name_part, is_identifier, replace_special_name

MAX_NAME = 40
"""Characters of a name, at most: it is a part of every symbol."""
DEFAULT_VERSION = "0.1.0"
"""Version of a library without one of its own."""
_NAMESPACES = frozenset({"std", "ekc"})
"""Namespaces that the namespace of the library would hide."""
_CPP_WORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t
class compl concept const consteval constexpr constinit const_cast continue co_await co_return co_yield
decltype default delete do double dynamic_cast else enum explicit export extern false float for friend
goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private
protected public register reinterpret_cast requires restrict return short signed sizeof static
static_assert static_cast struct switch template this thread_local throw true try typedef typeid typename
union unsigned using virtual void volatile wchar_t while xor xor_eq
"""
_LOWER_CASE_MACROS = """
assert errno i386 linux major makedev minor offsetof setjmp stderr stdin stdout unix va_arg va_end va_start
"""
_WORDS = frozenset([*_CPP_WORDS.split(), *_LOWER_CASE_MACROS.split()])
"""Words of C and of C++20, and macros of compilers and of the C library."""
_VERSION = re.compile(r"(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\Z", re.ASCII)


def check_bundle_name(name: str) -> str:
    """Check the name of a library: a C++ name of lower-case letters, digits and `_`.

    Raises `InvalidInput`."""
    if not isinstance(name, str):
        raise InvalidInput(f"--name: {format_value(name)} is not a text; write 'kernels'")
    if has_meaning(name) or name in _NAMESPACES:
        raise InvalidInput(f"--name: {name!r} has a meaning in C++ already; try '{name}_kernels'")
    near = make_library_name(check_name_part("--name", name))
    if len(name) > MAX_NAME:
        raise InvalidInput(
            f"--name: {name[:20]}... has {len(name)} characters, at most {MAX_NAME}; try {near!r}"
        )
    if not is_identifier(name):
        rule = "a letter from a to z, then letters, digits, _"
        raise InvalidInput(f"--name: {name!r} is not an identifier ({rule}); try {near!r}")
    if name != name.lower() or "__" in name or name.endswith("_"):
        raise InvalidInput(
            f"--name: {name!r} is not in lower case with single underscores inside; try {near!r}"
        )
    return name


def has_meaning(name: str) -> bool:
    """Whether C++ or a C header may give a name a meaning: a word, or a macro such as "M_PI" or "linux"."""
    is_reserved = not is_identifier(name) and is_identifier(f"{name}_kernels")
    return is_reserved or name in _WORDS or bool(re.fullmatch("[A-Z][A-Z0-9_]*[A-Z0-9]", name))


def check_bundle_version(version: str) -> str:
    """Check the version of a library: three whole numbers, as 1.2.3. Raises `InvalidInput`."""
    if not _VERSION.match(check_text("--version", version, "'0.1.0'")):
        numbers = [str(int(n)) for n in re.findall(r"[0-9]+", version)[:3] if len(n) < 10]
        near = ".".join([*numbers, "0", "0", "0"][:3]) if numbers else "0.1.0"
        raise InvalidInput(
            f"--version: {version!r:.60} is not three whole numbers with dots, MAJOR.MINOR.PATCH; try {near}"
        )
    return version


def make_library_name(text: str) -> str:
    """Make a legal name of a library: `Act-D` -> `act_d`, `2layers.toml` -> `library_2layers_toml`."""
    name = replace_special_name(re.sub("[^a-z0-9]+", "_", text.lower()).strip("_") or "library")
    if name[0].isdigit():
        name = f"library_{name}"
    name = name[:MAX_NAME].rstrip("_")
    return f"{name}_library" if has_meaning(name) or name in _NAMESPACES else name


def name_library(name: str | None, op: Operator) -> str:
    """Name of the library of one operator: the given one, checked, or one made of the operator's."""
    return make_library_name(op.name) if name is None else check_bundle_name(name)
