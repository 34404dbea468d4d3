"""The account by features as text: the lines, what the model is worth, and what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ekc.ir.schedule import Schedule
    from ekc.search.explain.learned import Account, Explanation, Line, Side
    from ekc.search.explain.schedule_model import Score

_HEADERS = ("cause", "A", "B", "by time", "by power", "energy", "physics")
_THOUSANDS = ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, ""))


def text(found: Explanation, one: Schedule, words: tuple[str, str], simulated: bool) -> str:
    """Three tables and notes."""
    from ekc.search.text_table import text_table

    title = (
        f"{str(one.op).splitlines()[0]} on {found.device}: {words[1]} (B) against {words[0]} (A)\n"
        + ("Simulated: every measured figure comes from a model of the device.\n" if simulated else "")
        + "By features, as the energy model learned them there. Parts are in percent of A's energy.\n"
    )
    of = found.account
    lines = text_table((*_HEADERS, f"B - A [{_unit(of)[1]}]"), _rows(of))
    tables = (text_table(("", "A", "B", "B / A"), _figures(of), title), lines, _judgement(found))
    return "\n".join(["\n\n".join(tables), *_notes(found)])


def _unit(of: Account) -> tuple[float, str]:
    from ekc.search.summary import unit_of

    return unit_of((of.a.energy_j, of.b.energy_j), "J")


def _figures(of: Account) -> list[tuple[str, ...]]:
    from ekc.search.summary import figure, spread, unit_of

    a, b = of.a, of.b
    scale, unit = _unit(of)
    seconds, unit_s = unit_of((a.latency_s, b.latency_s), "s")
    energies = (figure(s.energy_j, scale) + spread(s.energy_j, s.energy_interval_j) for s in (a, b))
    return [
        (f"energy [{unit}]", *energies, f"{b.energy_j / a.energy_j:.3f}"),
        (f"latency [{unit_s}]", *_pair(a.latency_s, b.latency_s, seconds)),
        ("power [W]", *_pair(a.power_w, b.power_w)),
    ]


def _pair(a: float, b: float, scale: float = 1.0) -> tuple[str, str, str]:
    from ekc.search.summary import figure

    return figure(a, scale), figure(b, scale), f"{b / a:.3f}"


def _rows(of: Account) -> list[tuple[str, ...]]:
    """Groups with their features, the rest, and the sums of the columns."""
    *groups, left = of.lines
    rows = [row for line in groups if line.features for row in _group(of, line)]
    sums = [sum(getattr(line, part) for line in of.lines) for part in ("latency", "power", "prior")]
    return [*rows, _line(of, left.cause, left.latency, left.power), _line(of, "difference", *sums)]


def _group(of: Account, line: Line) -> list[tuple[str, ...]]:
    inner = [
        (f"  {f.name}", _count(f.a), _count(f.b), "", "", _percent(of, f.energy), "", "")
        for f in line.features
    ]
    return [_line(of, line.cause, line.latency, line.power, line.prior), *inner]


def _line(
    of: Account, cause: str, latency: float, power: float, prior: float | None = None
) -> tuple[str, ...]:
    from ekc.search.summary import figure

    energy = latency + power
    parts = (_percent(of, part) for part in (latency, power, energy))
    joules = energy * of.joules_per_log
    signed = f"{'-' if joules < 0 else '+' if joules else ''}{figure(abs(joules), _unit(of)[0])}"
    return cause, "", "", *parts, "" if prior is None else _percent(of, prior), signed


def _judgement(found: Explanation) -> str:
    from ekc.search.explain.schedule_model import FOLDS
    from ekc.search.text_table import text_table

    q = found.quality
    rows = [
        ("energy", str(found.metered), *_score(q.energy), *_score(q.energy_by_prior)),
        ("latency", str(found.timed), *_score(q.latency), *_score(q.latency_by_prior)),
        ("power", str(found.metered), *_score(q.power), *_score(q.power_by_prior)),
    ]
    headers = (
        f"held out, {FOLDS} folds",
        "rows",
        "rank",
        "median error",
        "physics alone: rank",
        "median error",
    )
    return text_table(headers, rows)


def _notes(found: Explanation) -> list[str]:
    notes = [
        f"A is {_origin(found.account.a)}, B is {_origin(found.account.b)}",
        f"learned from {found.timed} timed schedules of {found.source}, {found.metered} of them metered, "
        f"A and B not among them; {found.failed} failed",
    ]
    return [*notes, f"doubt: {found.doubt}"] if found.doubt else notes


def _origin(side: Side) -> str:
    if side.metered:
        return "measured"
    return "timed, its power predicted" if side.timed else "predicted: it was never measured there"


def _score(score: Score) -> tuple[str, str]:
    return "-" if score.rank is None else f"{score.rank:.2f}", f"{100 * score.error:.1f}%"


def _percent(of: Account, log: float) -> str:
    return f"{100 * of.share_of_a(log):+.1f}%"


def _count(value: float) -> str:
    if value == 0:
        return "0"
    size, letter = next(((s, x) for s, x in _THOUSANDS if value >= s), (1.0, ""))
    return f"{value / size:.3g}{letter}"
