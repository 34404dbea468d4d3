"""Tables of a pack that was measured: predictions beside figures, and the answers to the filed questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    figures = (
        ("timed", lambda one: str(one.get("kernels", 0))),
        ("fastest [us]", lambda one: _number(one.get("fastest_s"), 1e6)),
        ("rank correlation; the prior's", lambda one: _pair(_number, one, "rank", "prior_rank")),
        ("median error; the prior's", lambda one: _pair(_share, one, "error", "prior_error")),
        ("median error up to 1.5 times the fastest", lambda one: _share(one.get("near_error"))),
        (
            "first choice over the fastest; the prior's",
            lambda one: _pair(_number, one, "choice", "prior_choice"),
        ),
    )
    return _format_figures(rows, title, "time", figures)


def _format_energies(rows: Sequence[Row], title: str) -> str:
    sustained = (
        ("sustained", lambda one: str(one.get("kernels", 0))),
        ("sustained time over the short one", lambda one: _number(one.get("over_short"))),
        ("rank correlation of short and sustained", lambda one: _number(one.get("short_rank"))),
    )
    energy = (
        ("metered", lambda one: str(one.get("kernels", 0))),
        ("rank correlation; the time's", lambda one: _pair(_number, one, "rank", "time_rank")),
        ("median error; the time's", lambda one: _pair(_share, one, "error", "time_error")),
        ("equal kernels", lambda one: str(one.get("equal", 0))),
        ("equal: most over least energy", lambda one: _number(one.get("spread"))),
        ("equal: rank; the time's", lambda one: _pair(_number, one, "equal_rank", "equal_time_rank")),
        (
            "first choice over the least; the fastest's",
            lambda one: _pair(_number, one, "choice", "time_choice"),
        ),
    )
    legend = [
        "  equal: kernels at most 5 % slower than the fastest",
        "  the time's: of the measured time alone, for errors at the median power",
    ]
    tables = [
        _format_figures(rows, title, "sustained", sustained),
        _format_figures(rows, "", "energy", energy),
    ]
    return "\n".join([*tables, *legend])


def _format_figures(
    rows: Sequence[Row], title: str, part: str, figures: Sequence[tuple[str, Callable[[Row], str]]]
) -> str:
    """A line for each figure, a column for each operator."""
    lines = [(name, *(show(row["comparison"][part] or {}) for row in rows)) for name, show in figures]
    return format_table(("", *map(_shorten_name, rows)), lines, title, label_count=1)


def _format_answers(rows: Sequence[Row]) -> str:
    lines = [(text, *(row["answers"].get(name, "open") for row in rows)) for name, text in QUESTIONS.items()]
    return format_table(("question", *map(_shorten_name, rows)), lines, "filed questions", label_count=1)


def _shorten_name(row: Row) -> str:
    """Name of the operator for the head of a column, without its extents."""
    first, *rest = row["item"].split()
    return " ".join([first, *rest[-1:]])


def _pair(show: Callable[[float | None], str], one: Row, name: str, other: str) -> str:
    return f"{show(one.get(name))}; {show(one.get(other))}"


def _number(value: float | None, scale: float = 1.0) -> str:
    return "-" if value is None else f"{scale * value:.3g}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
