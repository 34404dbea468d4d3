"""A reader of PTX text, token by token: look, take, expect, with the line in every complaint."""

from __future__ import annotations

import re

from ekc.emulator.ptx.tokens import TOKEN
from ekc.errors import EkcError

_BLANKS = re.compile(r"\s*")


class Reader:
    """Walks over a text whose first line has the number `line`."""

    def __init__(self, text: str, line: int = 1) -> None:
        self.source = text.rstrip("\0")
        self._counted, self._line = 0, line
        self.go(0)

    def go(self, place: int) -> None:
        """Stand before the first token at or behind a place of the text."""
        self.at = _BLANKS.match(self.source, place).end()  # type: ignore[union-attr]
        self._token: tuple[str, str, int] | None = None

    def token(self) -> tuple[str, str, int]:
        """The next token, its kind (string, number, word or mark; "" at the end), and where it ends."""
        if self._token is None:
            match = TOKEN.match(self.source, self.at)
            if match is not None:
                self._token = match.group(), match.lastgroup or "", match.end()
            elif self.at == len(self.source):
                self._token = "", "", self.at
            else:
                strange = self.source[self.at : self.at + 20].splitlines()[0]
                raise EkcError(f"PTX line {self.line()}: cannot read {strange!r}")
        return self._token

    def peek(self) -> str:
        """The next token's text, "" at the end."""
        return self.token()[0]

    def line(self) -> int:
        """The line of the next token; of the last one at the end."""
        place = self.at if self.at < len(self.source) else len(self.source.rstrip())
        self._line += self.source.count("\n", self._counted, place)
        self._counted = max(self._counted, place)
        return self._line

    def take(self, wanted: str | None = None) -> str:
        """The next token's text, which must be `wanted` if that is given."""
        text, kind, end = self.token()
        if not kind:
            raise EkcError(
                f"PTX ends at line {self.line()} where {wanted or 'more'!r} was expected: truncated?"
            )
        if wanted is not None and text != wanted:
            raise EkcError(f"PTX line {self.line()}: {text!r} where {wanted!r} was expected")
        self.go(end)
        return text

    def accept(self, wanted: str) -> str:
        """The next token's text if it is this, otherwise ""."""
        text, _, end = self.token()
        if text != wanted:
            return ""
        self.go(end)
        return text

    def skip_past(self, end: str) -> None:
        """Drop tokens up to and with one."""
        while self.take() != end:
            pass
