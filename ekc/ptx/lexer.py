"""PTX text as tokens, and a reader that goes through them and names the line in every error."""

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
_BRACKET = re.compile(r"[{}\[\]()]")
_BRACKET_OR_COMMA = re.compile(r"[{}\[\](),]")


def split_operands(text: str, line: int) -> list[str]:
    """The text of each operand of a statement, split at the commas outside of brackets."""
    if _BRACKET.search(text) is None:
        return text.split(",") if "," in text or text.strip() else []
    pieces, depth, start = [], 0, 0
    for match in _BRACKET_OR_COMMA.finditer(text):
        mark = match.group()
        if mark != ",":
            depth += 1 if mark in "{[(" else -1
        elif depth == 0:
            pieces.append(text[start : match.start()])
            start = match.end()
        if depth < 0:
            break
    if depth:
        raise EkcError(f"PTX line {line}: {text.strip()!r} cannot be operands: brackets do not match")
    return [*pieces, text[start:]] if pieces or text.strip() else []


def strip_comments(ptx: str) -> str:
    """The text with a blank in the place of each comment; line numbers stay the same."""
    return _STRING_OR_COMMENT.sub(_blank_comment, ptx)


def _blank_comment(match: re.Match[str]) -> str:
    text = match.group()
    return text if text[0] == '"' else "\n" * text.count("\n") or " "


def format_statement(statement: str) -> str:
    """A statement as one line with even spacing."""
    text = " ".join(match.group() for match in TOKEN.finditer(statement))
    for mark in (",", "]", "}", "|", "+"):
        text = text.replace(f" {mark}", mark)
    for mark in ("[", "{", "@", "!", "|", "+", "-"):
        text = text.replace(f"{mark} ", mark)
    return text


_BLANKS = re.compile(r"\s*")


class TokenReader:
    """Reads the tokens of a text, one after another."""

    def __init__(self, text: str, line: int = 1) -> None:
        """`line` is the number of the text's first line."""
        self.source = text.rstrip("\0")
        self._counted, self._line_number = 0, line
        self.move_to(0)

    def move_to(self, position: int) -> None:
        """Continue with the first token at or after a position of the text."""
        self.set_position(_BLANKS.match(self.source, position).end())  # type: ignore[union-attr]

    def set_position(self, position: int) -> None:
        """Continue with the token that begins at a position of the text."""
        self.position = position
        self._token: tuple[str, str, int] | None = None

    def peek_token(self) -> tuple[str, str, int]:
        """The next token, its kind (string, number, word or mark; "" at the end), and where it ends."""
        if self._token is None:
            match = TOKEN.match(self.source, self.position)
            if match is not None:
                self._token = match.group(), match.lastgroup or "", match.end()
            elif self.position == len(self.source):
                self._token = "", "", self.position
            else:
                unreadable = self.source[self.position : self.position + 20].splitlines()[0]
                raise self.make_error(f"cannot read {unreadable!r}")
        return self._token

    def peek(self) -> str:
        """The next token's text, "" at the end."""
        return self.peek_token()[0]

    def current_line(self) -> int:
        """The line of the next token; of the last one at the end."""
        place = self.position if self.position < len(self.source) else len(self.source.rstrip())
        if place > self._counted:
            self._line_number += self.source.count("\n", self._counted, place)
            self._counted = place
        return self._line_number

    def make_error(self, problem: str) -> EkcError:
        """An error that names the line of the next token."""
        return EkcError(f"PTX line {self.current_line()}: {problem}")

    def take(self, expected: str | None = None) -> str:
        """Read the next token's text, which must be `expected` if that is given."""
        text, kind, end = self.peek_token()
        if not kind:
            line = self.current_line()
            raise EkcError(f"PTX ends at line {line} where {expected or 'more'!r} was expected: truncated?")
        if expected is not None and text != expected:
            raise self.make_error(f"{text!r} where {expected!r} was expected")
        self.move_to(end)
        return text

    def accept(self, expected: str) -> str:
        """Read the next token if it is `expected`; otherwise return "" and stay."""
        text, _, end = self.peek_token()
        if text != expected:
            return ""
        self.move_to(end)
        return text

    def skip_past(self, end: str) -> None:
        """Skip tokens up to `end` and `end` itself."""
        while self.take() != end:
            pass
