"""Tables of a pack that was measured: predictions beside figures, and the answers to the filed questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.packs.compare import QUESTIONS
from ekc.tables import format_table

Row = dict[str, Any]


def format_report(rows: Sequence[Row], label: str, part: str) -> str:
    """All tables, of the last comparison of each operator."""
    compared = [row for row in rows if "comparison" in row]
    if not compared:
        return f"{part}: nothing was compared"
    tables = [
        _format_times(compared, f"{part}: on {label}; short times beside the predictions"),
        _format_energies(compared, "sustained times and energies beside the predictions"),
        _format_answers(compared),
    ]
    notes = [f"  {row['item']}: {row['status']}" for row in rows if row["status"] not in ("ok", "not run")]
    return "\n".join([*tables, *notes])


def _format_times(rows: Sequence[Row], title: str) -> str:
    lines = []
    for row in rows:
        one = row["comparison"]["time"] or {}
        lines.append(
            (
                row["item"],
                str(one.get("kernels", 0)),
                _number(one.get("fastest_s"), 1e6),
                _number(one.get("rank")),
                _number(one.get("prior_rank")),
                _share(one.get("error")),
                _share(one.get("prior_error")),
                _share(one.get("near_error")),
                _number(one.get("choice")),
                _number(one.get("prior_choice")),
            )
        )
    heads = ("operator", "timed", "fastest [us]", "rank", "prior's", "error", "prior's", "near the top")
    heads += ("first choice over the fastest", "prior's")
    return format_table(heads, lines, title)


def _format_energies(rows: Sequence[Row], title: str) -> str:
    lines = []
    for row in rows:
        slow, one = (row["comparison"][name] or {} for name in ("sustained", "energy"))
        lines.append(
            (
                row["item"],
                str(slow.get("kernels", 0)),
                _number(slow.get("over_short")),
                _number(slow.get("short_rank")),
                str(one.get("kernels", 0)),
                f"{one.get('equal', 0)}, {_number(one.get('spread'))}",
                f"{_number(one.get('rank'))}, {_number(one.get('time_rank'))}",
                f"{_number(one.get('equal_rank'))}, {_number(one.get('equal_time_rank'))}",
                f"{_share(one.get('error'))}, {_share(one.get('time_error'))}",
                f"{_number(one.get('choice'))}, {_number(one.get('time_choice'))}",
            )
        )
    heads = ("operator", "sustained", "over short", "rank of short", "joules", "equal, spread")
    heads += (
        "rank, time's",
        "equal: rank, time's",
        "error, time's",
        "first choice over the least, fastest's",
    )
    legend = [
        "  equal: kernels at most 5 % slower than the fastest, and their most over least energy",
        "  time's: of the measured time alone, for errors at the median power",
    ]
    return "\n".join([format_table(heads, lines, title), *legend])


def _format_answers(rows: Sequence[Row]) -> str:
    lines = [(text, *(row["answers"].get(name, "open") for row in rows)) for name, text in QUESTIONS.items()]
    return format_table(("question", *(row["item"] for row in rows)), lines, "filed questions")


def _number(value: float | None, scale: float = 1.0) -> str:
    return "-" if value is None else f"{scale * value:.3g}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
