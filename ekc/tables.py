"""Tables as plain text: ASCII, no colour codes, 100 columns wide; counts and figures in messages; groups.

The text of a table does not depend on the terminal, on variables such as COLUMNS and FORCE_COLOR, or on a
notebook, to whose page rich would otherwise write.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any, TypeVar

TABLE_WIDTH = 100
K = TypeVar("K")
V = TypeVar("V")


def group_pairs(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of pairs (key, value) by their key, both in the order of their first pair."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


_UNIT_PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"))


def choose_prefix(value: float) -> tuple[float, str]:
    """The scale and prefix of a unit that show a value with digits before the point, from nano to none."""
    return next(((s, p) for s, p in _UNIT_PREFIXES if value >= s), _UNIT_PREFIXES[-1])


def choose_unit(values: Sequence[float | None], unit: str) -> tuple[float, str]:
    """The scale and unit that show the smallest value with digits before the point."""
    scale, prefix = choose_prefix(min((v for v in values if v), default=1.0))
    return scale, prefix + unit


def count_nouns(count: Any, noun: str) -> str:
    """A count and its noun: "1 finding", "2 findings"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def join_lines(text: str) -> str:
    """The text in one line: each run of white space becomes one space."""
    return " ".join(text.split())


def format_rounded(value: float, digits: int) -> str:
    """A figure rounded to some significant digits, without an exponent: 1623 to two digits is "1,600"."""
    text = f"{value:.{digits}g}"
    return f"{Decimal(text):,f}" if "e" in text else text


def format_figure(value: float | None, scale: float = 1.0) -> str:
    """Format a value with four significant digits and no exponent; "-" for None."""
    if value is None:
        return "-"
    scaled = value / scale
    digits = max(0, 4 - len(str(int(abs(scaled)))))
    return f"{scaled:z.{digits}f}"


def format_quantity(value: float, unit: str) -> str:
    """Format with four significant digits and a unit prefix: `12.35 mJ`."""
    scale, prefix = choose_prefix(value)
    return f"{format_rounded(value / scale, 4)} {prefix}{unit}"


def format_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str = "",
    label_count: int = 1,
    width: int = TABLE_WIDTH,
) -> str:
    """Format a table. The first `label_count` columns are aligned to the left, the others to the right. Cells
    that would make it wider than `width` characters are folded."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    plain = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
    table = Table(box=plain, pad_edge=False, show_edge=False)
    for number, header in enumerate(headers):
        table.add_column(header, justify="left" if number < label_count else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    sink = io.StringIO()
    console = Console(
        file=sink,
        width=width,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        markup=False,
        emoji=False,
    )
    console.print(table, highlight=False)
    lines = [line.rstrip() for line in sink.getvalue().splitlines()]
    return "\n".join([title, *lines] if title else lines)
