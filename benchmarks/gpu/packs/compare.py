"""Predictions of a pack beside what a GPU measured, each with its trivial predictor, and their tables. Pure
functions.

The bars are those of docs/decisions/2026-11-29-questions-of-the-gpu-visit.md, set before a GPU ran the pack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.ranking import compute_error, spearman
from benchmarks.gpu.folder import Row
from benchmarks.gpu.packs.predictions import SLOWDOWN, OperatorPredictions, choose_by_energy
from ekc.tables import format_table

Vector = NDArray[np.float64]
LEAST = 8
"""Kernels below which no question is answered."""
NEAR = 1.5
"""Time relative to the fastest, up to which a kernel is near the top."""
RANK_BAR, CHOICE_BAR, ENERGY_BAR = 0.8, 1.05, 1.02


@dataclass(frozen=True)
class Measured:
    """Figures that a GPU measured for the kernels of one operator, by digest of the schedule."""

    short_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a call in a short measurement."""
    sustained_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a call, back to back on a hot board."""
    energy_j: Mapping[str, float] = field(default_factory=dict)
    """Joules of a call then."""


def compare(filed: OperatorPredictions, measured: Measured) -> dict[str, Any]:
    """All figures of the comparison; None where too little was measured."""
    return {
        "time": _compare_times(filed, measured.short_s),
        "sustained": _compare_sustained(filed, measured),
        "energy": _compare_energies(filed, measured),
    }


def _compare_times(filed: OperatorPredictions, short_s: Mapping[str, float]) -> dict[str, Any] | None:
    rows, real = _align(filed, short_s)
    if len(rows) < LEAST:
        return None
    model, prior = filed.figures["short_s"][rows], filed.figures["prior_s"][rows]
    near = real <= NEAR * real.min()
    return {
        "kernels": len(rows),
        "fastest_s": float(real.min()),
        "rank": spearman(model, real),
        "prior_rank": spearman(prior, real),
        "error": compute_error(model, real),
        "prior_error": compute_error(prior, real),
        "near": int(near.sum()),
        "near_rank": spearman(model[near], real[near]),
        "near_error": compute_error(model[near], real[near]),
        "choice": float(real[np.argmin(model)] / real.min()),
        "prior_choice": float(real[np.argmin(prior)] / real.min()),
    }


def _compare_sustained(filed: OperatorPredictions, measured: Measured) -> dict[str, Any] | None:
    rows, real = _align(filed, measured.sustained_s)
    if len(rows) < LEAST:
        return None
    short = np.array([measured.short_s.get(filed.schedules[row], np.nan) for row in rows])
    known = np.isfinite(short)
    return {
        "kernels": len(rows),
        "over_short": float(np.median(real[known] / short[known])) if known.any() else None,
        "rank": spearman(filed.figures["sustained_s"][rows], real),
        "short_rank": spearman(short[known], real[known]),
        "error": compute_error(filed.figures["sustained_s"][rows], real),
    }


def _compare_energies(filed: OperatorPredictions, measured: Measured) -> dict[str, Any] | None:
    """The trivial predictors are the time alone: for the rank and the choice the measured time, for the error
    that time at the median power of the same kernels."""
    both = {name: j for name, j in measured.energy_j.items() if name in measured.sustained_s}
    rows, joules = _align(filed, both)
    if len(rows) < LEAST:
        return None
    seconds = np.array([measured.sustained_s[filed.schedules[row]] for row in rows])
    model = filed.figures["energy_j"][rows]
    allowed = seconds <= (1.0 + SLOWDOWN) * seconds.min()
    least = float(joules[allowed].min())
    said = choose_by_energy(model, filed.figures["sustained_s"][rows])
    return {
        "kernels": len(rows),
        "equal": int(allowed.sum()),
        "spread": float(joules[allowed].max() / least),
        "rank": spearman(model, joules),
        "time_rank": spearman(seconds, joules),
        "equal_rank": spearman(model[allowed], joules[allowed]),
        "equal_time_rank": spearman(seconds[allowed], joules[allowed]),
        "error": compute_error(model, joules),
        "time_error": compute_error(seconds * float(np.median(joules / seconds)), joules),
        "choice": float(joules[said] / least),
        "choice_slower": float(seconds[said] / seconds.min()),
        "time_choice": float(joules[np.argmin(seconds)] / least),
    }


def _align(filed: OperatorPredictions, figures: Mapping[str, float]) -> tuple[NDArray[np.int64], Vector]:
    """Rows of the predictions that were measured, and their figures."""
    rows = [row for row, digest in enumerate(filed.schedules) if digest in figures]
    real = np.array([figures[filed.schedules[row]] for row in rows], dtype=np.float64)
    return np.array(rows, dtype=np.int64), real


def answer(facts: Mapping[str, Any]) -> dict[str, str]:
    """ "yes", "no" or "open" (too little was measured) to each filed question, for one operator."""
    time, sustained, energy = (facts[name] for name in ("time", "sustained", "energy"))
    answers = dict.fromkeys(QUESTIONS, "open")
    if time is not None:
        is_ahead = _least(time["rank"]) > _least(time["prior_rank"])
        answers["rank"] = _say(_least(time["rank"]) >= RANK_BAR and is_ahead)
        answers["choice"] = _say(time["choice"] <= CHOICE_BAR)
    if sustained is not None:
        answers["short"] = _say(_least(sustained["short_rank"]) >= RANK_BAR)
    if energy is not None and energy["equal"] >= LEAST:
        answers["spread"] = _say(energy["spread"] > 1.0 + SLOWDOWN)
        answers["energy rank"] = _say(
            _least(energy["equal_rank"]) > max(0.5, _least(energy["equal_time_rank"]))
        )
        is_better = energy["choice"] <= ENERGY_BAR and energy["choice"] < energy["time_choice"]
        answers["energy choice"] = _say(is_better)
    return answers


QUESTIONS: Mapping[str, str] = {
    "rank": f"does the model rank the kernels by time ({RANK_BAR} or more, and above the prior)?",
    "choice": f"is its first choice at most {CHOICE_BAR - 1:.0%} slower than the fastest?",
    "short": f"does a short timing rank the best as sustained time does ({RANK_BAR} or more)?",
    "spread": f"do kernels at most {SLOWDOWN:.0%} slower than the fastest differ more than that in energy?",
    "energy rank": "does the model rank those by energy (above 0.5, and above the time alone)?",
    "energy choice": f"is its first choice by energy within {ENERGY_BAR - 1:.0%} of the least, and better "
    "than the fastest?",
}
"""The filed questions that this part answers for each operator."""


def _least(rank: float | None) -> float:
    return -1.0 if rank is None else rank


def _say(is_so: bool) -> str:
    return "yes" if is_so else "no"


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
