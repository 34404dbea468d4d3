"""Name and version of a bundle: what is legal, and the nearest legal choice."""

from __future__ import annotations

import re

from ekc.errors import InvalidInput
from ekc.ir.validate import check_identifier, is_identifier

MAX_NAME = 40
"""Characters of a name, at most: it is a part of every symbol."""
_TAKEN_NAMES = frozenset({"std", "ekc"})
"""Namespaces that the namespace of the bundle would hide."""
_VERSION = re.compile(r"(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\Z", re.ASCII)


def check_bundle_name(name: str) -> str:
    """Check the name of a bundle: a C++ name of lower-case letters, digits and `_`. Raises `InvalidInput`."""
    if name in _TAKEN_NAMES or (not is_identifier(name) and is_identifier(f"{name}_kernels")):
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


def check_bundle_version(version: str) -> str:
    """Check the version of a bundle: three whole numbers, as 1.2.3. Raises `InvalidInput`."""
    if not _VERSION.match(version):
        numbers = [str(int(n)) for n in re.findall(r"[0-9]+", version)[:3] if len(n) < 10]
        near = ".".join([*numbers, "0", "0", "0"][:3]) if numbers else "0.1.0"
        raise InvalidInput(
            f"--version: {version!r:.60} is not three whole numbers with dots, MAJOR.MINOR.PATCH; try {near}"
        )
    return version
