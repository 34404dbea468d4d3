"""PTX text cut into tokens, each with its line."""

from __future__ import annotations

import re
from typing import NamedTuple

from ekc.errors import EkcError

_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<string>"[^"\n]*")
    |(?P<number>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|\d+\.\d+|\d+U?)
    |(?P<word>[.%$_A-Za-z][\w$]*(?:(?:\.|::)[\w$]+)*)
    |(?P<mark>[{}\[\]()<>,;:@!|+\-=&*])""",
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """A piece of text, its kind (string, number, word, mark) and its line, from 1."""

    text: str
    kind: str
    line: int


def tokens(text: str) -> list[Token]:
    """All tokens of a PTX text, comments left out; `EkcError` at the first strange character."""
    text = text.rstrip("\0")
    found: list[Token] = []
    place, line = 0, 1
    for match in _TOKEN.finditer(text):
        if match.start() != place:
            break
        piece, kind, place = match.group(), match.lastgroup or "skip", match.end()
        if kind == "skip":
            line += piece.count("\n")
        else:
            found.append(Token(piece, kind, line))
    if place < len(text):
        raise EkcError(f"PTX line {line}: cannot read {text[place : place + 20].splitlines()[0]!r}")
    return found
