"""PTX text cut into tokens."""

from __future__ import annotations

import re

from ekc.errors import EkcError

_STRING_OR_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
TOKEN = re.compile(
    r"""(?P<string>"[^"\n]*")
    |(?P<number>(?:\d+\.\d*|\.\d+)(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+|\d\w*)
    |(?P<word>[.%$_A-Za-z][\w$]*(?:(?:\.|::)[\w$]+)*)
    |(?P<mark>&&|\|\||[=!<>]=|<<|>>|[{}\[\]()<>,;:@!|+\-=&*/%^~?])""",
    re.VERBOSE,
)
_BRACKET_OR_COMMA = re.compile(r"[{}\[\](),]")


def split_operands(text: str, line: int) -> list[str]:
    """The text of each operand of a statement: between the commas that stand outside brackets."""
    pieces, depth, start = [], 0, 0
    for found in _BRACKET_OR_COMMA.finditer(text):
        mark = found.group()
        if mark != ",":
            depth += 1 if mark in "{[(" else -1
        elif depth == 0:
            pieces.append(text[start : found.start()])
            start = found.end()
        if depth < 0:
            break
    if depth:
        raise EkcError(f"PTX line {line}: {text.strip()!r} cannot be operands: brackets do not match")
    return [*pieces, text[start:]] if pieces or text.strip() else []


def strip_comments(ptx: str) -> str:
    """The text with a blank for each comment, its lines still where they were."""
    return _STRING_OR_COMMENT.sub(_blank_comment, ptx)


def _blank_comment(match: re.Match[str]) -> str:
    text = match.group()
    return text if text[0] == '"' else "\n" * text.count("\n") or " "


def format_statement(statement: str) -> str:
    """A statement as one line, its tokens evenly spaced."""
    text = " ".join(match.group() for match in TOKEN.finditer(statement))
    for mark in (",", "]", "}", "|", "+"):
        text = text.replace(f" {mark}", mark)
    for mark in ("[", "{", "@", "!", "|", "+", "-"):
        text = text.replace(f"{mark} ", mark)
    return text
