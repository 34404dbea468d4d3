"""A reader of tokens: look, take, expect, with the line in every complaint."""

from __future__ import annotations

import struct

from ekc.emulator.tokens import Token
from ekc.errors import EkcError


class Reader:
    """Walks over tokens."""

    def __init__(self, stream: list[Token]) -> None:
        self.stream = stream
        self.at = 0

    def peek(self) -> str:
        """The next token's text, "" at the end."""
        return self.stream[self.at].text if self.at < len(self.stream) else ""

    def line(self) -> int:
        """The line of the next token."""
        return self.stream[min(self.at, len(self.stream) - 1)].line if self.stream else 0

    def take(self, wanted: str | None = None) -> str:
        """The next token's text, which must be `wanted` if that is given."""
        if self.at >= len(self.stream):
            raise EkcError(
                f"PTX ends at line {self.line()} where {wanted or 'more'!r} was expected: truncated?"
            )
        token = self.stream[self.at]
        if wanted is not None and token.text != wanted:
            raise EkcError(f"PTX line {token.line}: {token.text!r} where {wanted!r} was expected")
        self.at += 1
        return token.text

    def accept(self, *wanted: str) -> str:
        """The next token's text if it is one of these, otherwise ""."""
        if self.at < len(self.stream) and (text := self.stream[self.at].text) in wanted:
            self.at += 1
            return text
        return ""

    def skip_past(self, end: str) -> None:
        """Drop tokens up to and with one."""
        while self.take() != end:
            pass

    def number(self) -> int:
        """A whole number, perhaps negative."""
        sign = -1 if self.accept("-") else 1
        value = number_of(self.take(), self.line())
        if isinstance(value, float):
            raise EkcError(f"PTX line {self.line()}: a whole number was expected")
        return sign * value


def number_of(word: str, line: int) -> int | float:
    """A PTX literal; `0f` and `0d` give the float whose bits they spell."""
    try:
        if word[:2] in ("0f", "0F"):
            return float(struct.unpack(">f", bytes.fromhex(word[2:]))[0])
        if word[:2] in ("0d", "0D"):
            return float(struct.unpack(">d", bytes.fromhex(word[2:]))[0])
        return float(word) if "." in word else int(word.rstrip("U"), 0)
    except ValueError as error:
        raise EkcError(f"PTX line {line}: {word!r} is not a number") from error


def spell(stream: list[Token]) -> str:
    """The statement as one line of text."""
    text = " ".join(token.text for token in stream)
    for mark in (",", "]", "}", "|", "+"):
        text = text.replace(f" {mark}", mark)
    for mark in ("[", "{", "@", "!", "|", "+", "-"):
        text = text.replace(f"{mark} ", mark)
    return text
