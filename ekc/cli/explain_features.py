"""Text of the account by features in `ekc explain`: causes, accuracy of the model, measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ekc.cli.output import format_count, format_signed

if TYPE_CHECKING:
    from ekc.ir.schedule.schedule import Schedule
    from ekc.search.explain.by_feature import (
        EnergyAccount,
        ExplainedSchedule,
        GroupContribution,
        LearnedExplanation,
    )
    from ekc.search.explain.schedule_model import PredictionScore

_HEADERS = ("cause", "A", "B", "by time", "by power", "energy", "physics")


def format_account(
    explanation: LearnedExplanation, schedule_a: Schedule, labels: tuple[str, str], simulated: bool
) -> str:
    """Three tables (figures, causes, accuracy of the model) and notes."""
    from ekc.tables import format_table

    title = (
        f"{str(schedule_a.op).splitlines()[0]} on {explanation.device}: "
        + f"{labels[1]} (B) against {labels[0]} (A)\n"
        + ("Simulated: every measured figure comes from a model of the device.\n" if simulated else "")
        + "By features, as the energy model learned them there. Parts are in percent of A's energy.\n"
    )
    account = explanation.account
    headers = (*_HEADERS, f"B - A [{_find_energy_unit(account)[1]}]")
    figures = format_table(("", "A", "B", "B / A"), _make_figure_rows(account), title)
    causes = format_table(headers, _make_cause_rows(account))
    tables = "\n\n".join((figures, causes, _format_model_quality(explanation)))
    return "\n".join([tables, *_make_notes(explanation)])


def _find_energy_unit(account: EnergyAccount) -> tuple[float, str]:
    from ekc.search.summary import choose_unit

    return choose_unit((account.a.energy_j, account.b.energy_j), "J")


def _make_figure_rows(account: EnergyAccount) -> list[tuple[str, ...]]:
    from ekc.search.summary import choose_unit, format_figure, format_relative_interval

    a, b = account.a, account.b
    scale, unit = _find_energy_unit(account)
    seconds, unit_s = choose_unit((a.latency_s, b.latency_s), "s")
    energies = (
        format_figure(s.energy_j, scale) + format_relative_interval(s.energy_j, s.energy_interval_j)
        for s in (a, b)
    )
    return [
        (f"energy [{unit}]", *energies, f"{b.energy_j / a.energy_j:.3f}"),
        (f"latency [{unit_s}]", *_format_pair(a.latency_s, b.latency_s, seconds)),
        ("power [W]", *_format_pair(a.power_w, b.power_w)),
    ]


def _format_pair(a: float, b: float, scale: float = 1.0) -> tuple[str, str, str]:
    from ekc.search.summary import format_figure

    return format_figure(a, scale), format_figure(b, scale), f"{b / a:.3f}"


def _make_cause_rows(account: EnergyAccount) -> list[tuple[str, ...]]:
    """Rows of the groups and their features, the remainder, and the column sums."""
    *groups, remainder = account.lines
    rows = [row for line in groups if line.features for row in _make_group_rows(account, line)]
    sums = [sum(getattr(line, part) for line in account.lines) for part in ("latency", "power", "prior")]
    rows.append(_make_cause_row(account, remainder.cause, remainder.latency, remainder.power))
    return [*rows, _make_cause_row(account, "difference", *sums)]


def _make_group_rows(account: EnergyAccount, line: GroupContribution) -> list[tuple[str, ...]]:
    inner: list[tuple[str, ...]] = []
    for f in line.features:
        counts, percent = (format_count(f.a), format_count(f.b)), _format_percent(account, f.energy)
        inner.append((f"  {f.name}", *counts, "", "", percent, "", ""))
    return [_make_cause_row(account, line.cause, line.latency, line.power, line.prior), *inner]


def _make_cause_row(
    account: EnergyAccount, cause: str, latency: float, power: float, prior: float | None = None
) -> tuple[str, ...]:
    energy = latency + power
    parts = (_format_percent(account, part) for part in (latency, power, energy))
    joules = energy * account.joules_per_log
    signed = format_signed(joules, _find_energy_unit(account)[0])
    return cause, "", "", *parts, "" if prior is None else _format_percent(account, prior), signed


def _format_model_quality(explanation: LearnedExplanation) -> str:
    from ekc.search.explain.schedule_model import FOLDS
    from ekc.tables import format_table

    q = explanation.quality
    rows = [
        ("energy", str(explanation.metered), *_format_score(q.energy), *_format_score(q.energy_by_prior)),
        ("latency", str(explanation.timed), *_format_score(q.latency), *_format_score(q.latency_by_prior)),
        ("power", str(explanation.metered), *_format_score(q.power), *_format_score(q.power_by_prior)),
    ]
    scores = ("rank", "median error", "physics alone: rank", "median error")
    return format_table((f"held out, {FOLDS} folds", "rows", *scores), rows)


def _make_notes(explanation: LearnedExplanation) -> list[str]:
    notes = [
        f"A is {_describe_origin(explanation.account.a)}, B is {_describe_origin(explanation.account.b)}",
        f"learned from {explanation.timed} timed schedules of {explanation.source}, "
        f"{explanation.metered} of them metered, A and B not among them; {explanation.failed} failed",
    ]
    return [*notes, f"doubt: {explanation.doubt}"] if explanation.doubt else notes


def _describe_origin(side: ExplainedSchedule) -> str:
    if side.metered:
        return "measured"
    return "timed, its power predicted" if side.timed else "predicted: it was never measured there"


def _format_score(score: PredictionScore) -> tuple[str, str]:
    return "-" if score.rank is None else f"{score.rank:z.2f}", f"{100 * score.error:.1f}%"


def _format_percent(account: EnergyAccount, log: float) -> str:
    return f"{100 * account.compute_share_of_a(log):+z.1f}%"
