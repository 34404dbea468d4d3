"""Names that nothing else has."""

from __future__ import annotations


def make_unique_name(name: str, taken: set[str]) -> str:
    """The name, with as many underscores behind it as make it free; taken from here on."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name
