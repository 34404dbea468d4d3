"""PTX text cut into tokens."""

from __future__ import annotations

import re

_STRING_OR_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
TOKEN = re.compile(
    r"""(?P<string>"[^"\n]*")
    |(?P<number>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|\d+\.\d+|\d+U?)
    |(?P<word>[.%$_A-Za-z][\w$]*(?:(?:\.|::)[\w$]+)*)
    |(?P<mark>[{}\[\]()<>,;:@!|+\-=&*])""",
    re.VERBOSE,
)


def uncommented(ptx: str) -> str:
    """The text with a blank for each comment, its lines still where they were."""
    return _STRING_OR_COMMENT.sub(_blank, ptx)


def _blank(found: re.Match[str]) -> str:
    text = found.group()
    return text if text[0] == '"' else "\n" * text.count("\n") or " "


def spelled(statement: str) -> str:
    """A statement as one line, its tokens evenly spaced."""
    text = " ".join(match.group() for match in TOKEN.finditer(statement))
    for mark in (",", "]", "}", "|", "+"):
        text = text.replace(f" {mark}", mark)
    for mark in ("[", "{", "@", "!", "|", "+", "-"):
        text = text.replace(f"{mark} ", mark)
    return text
