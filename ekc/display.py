"""The way in which objects show themselves: one line in a console, a small table in a notebook.

The HTML has no colors of its own, so it is readable on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

MAX_LINE_CHARS = 119
"""Most characters of a line."""
MAX_NAME_CHARS = 32
"""Most characters of a name that a user chose, within a line."""
_EDGE = "border-bottom:1px solid rgba(128,128,128,0.5)"
_PLAIN = "color:inherit;background:none"


def shorten(text: str, limit: int = MAX_NAME_CHARS) -> str:
    """A text on one line of at most `limit` characters, cut at its end."""
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def format_line(value: object, text: str) -> str:
    """The `repr` of an object: its class and a text, `<Trial 4.8 us, 0.5 mJ metered>`."""
    kind = type(value).__name__
    return f"<{kind} {shorten(text, MAX_LINE_CHARS - len(kind) - 3)}>"


def format_html_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str = "",
    note: str = "",
    label_count: int = 1,
) -> str:
    """A table in HTML, with a title above and a note below. The first `label_count` columns are aligned to
    the left, the others to the right. All texts are escaped."""
    sides = ["left" if number < label_count else "right" for number in range(len(headers))]
    head = "".join(_format_cell("th", *cell, f";{_EDGE}") for cell in zip(headers, sides, strict=True))
    body = "".join(
        f"<tr>{''.join(_format_cell('td', *cell) for cell in zip(row, sides, strict=True))}</tr>"
        for row in rows
    )
    top = f'<caption style="caption-side:top;text-align:left;{_PLAIN}">{_escape(title)}</caption>'
    below = f'<div style="{_PLAIN};opacity:0.8;font-size:0.9em">{_escape(note)}</div>' if note else ""
    table = f'<table style="border-collapse:collapse;width:auto;margin:0;{_PLAIN}">'
    return f"{table}{top if title else ''}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def format_html_text(text: str, title: str = "") -> str:
    """A text in HTML as it is, in letters of equal width, with a title above."""
    top = f'<div style="{_PLAIN}">{_escape(title)}</div>' if title else ""
    return f'{top}<pre style="{_PLAIN};overflow-x:auto">{escape(text)}</pre>'


def _format_cell(tag: str, text: str, side: str, more: str = "") -> str:
    return f'<{tag} style="text-align:{side};padding:2px 8px{more}">{_escape(text)}</{tag}>'


def _escape(text: str) -> str:
    """Escaped text; line ends become breaks."""
    return escape(text).replace("\n", "<br>")
