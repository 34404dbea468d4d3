"""`ekc explain A B`: the causes of the difference in energy of two schedules."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ekc import devices
from ekc.cli.arguments import (
    OperatorCommand,
    OperatorRequest,
    operator_arguments,
    refuse_options,
    refuse_unused_options,
)
from ekc.cli.output import FILE, format_count, format_signed, json_option, print_result
from ekc.cli.sources import (
    CHOICE_OPTIONS,
    any_toolchain_option,
    choice_options,
    read_schedule,
    target_option,
)
from ekc.errors import InvalidInput
from ekc.tables import choose_unit, format_figure, format_table

if TYPE_CHECKING:
    from ekc.devices.device import Device
    from ekc.ir.schedule.schedule import Schedule
    from ekc.search.data.selection import SelectionRule
    from ekc.search.explain.by_event import SimulatedExplanation
    from ekc.search.explain.by_feature import (
        EnergyAccount,
        ExplainedSchedule,
        GroupContribution,
        LearnedExplanation,
    )
    from ekc.search.explain.schedule_model import PredictionScore


@click.command(cls=OperatorCommand)
@click.argument("a", callback=refuse_options)
@click.argument("b", callback=refuse_options)
@operator_arguments
@click.option("--records", type=FILE, help="Record file in which digests, best and fastest are looked up.")
@any_toolchain_option
@choice_options
@target_option
@json_option
def explain(
    a: str,
    b: str,
    request: OperatorRequest,
    records: Path | None,
    any_toolchain: bool,
    objective: str,
    max_slowdown: float,
    target: str,
    as_json: bool,
) -> None:
    """Explain why one schedule costs more energy than another.

    A simulated device attributes the difference to its causes exactly. For a GPU or a recording, an energy
    model is trained on the measurements and attributes it to features; its accuracy is printed.

    A and B are schedule files (.json), naive, or, with --records or a recording, best, fastest or the first
    digits of a digest. OPERATOR is needed for naive, and where the file has several operators.

    \b
      ekc explain a.json b.json --target a100
      ekc explain fastest best --records tuning.db
      ekc explain naive best matmul 512 512 512 --records tuning.db
      ekc explain fastest best --records tuning.db --target cuda:0
      ekc explain fastest best --target recorded:recording.jsonl.gz
    """
    from ekc.search.data.selection import SelectionRule
    from ekc.search.explain.by_event import can_explain
    from ekc.search.explain.by_event import explain as account

    device, rule = devices.open(target), SelectionRule(objective, max_slowdown)
    _check_unused_options((a, b), request, records if can_explain(device) else None)
    one, other = (_find_schedule(word, request, records, device, rule, any_toolchain) for word in (a, b))
    labels = (_label_schedule(a, rule), _label_schedule(b, rule))
    head = {
        "operator": one.op.to_json(),
        "device": {"name": device.name, "simulated": device.simulated},
        "digest_a": one.digest,
        "digest_b": other.digest,
    }
    if can_explain(device):
        exact = account(one, other, device)
        print_result(head | exact.to_json() if as_json else _format_exact_account(exact, one, labels))
        return
    from ekc.search.explain.by_feature import explain_learned

    learned = explain_learned(one, other, device, records)
    print_result(
        head | learned.to_json()
        if as_json
        else _format_learned_account(learned, one, labels, device.simulated)
    )


def _check_unused_options(arguments: tuple[str, str], request: OperatorRequest, records: Path | None) -> None:
    """Raise `InvalidInput` for options that neither A nor B needs."""
    named = {word for word in arguments if not _is_file(word)}
    if not request.is_empty and not named & {"naive", "best", "fastest"}:
        raise InvalidInput("OPERATOR: A and B name their own operators; leave it out")
    if records is not None and not named - {"naive"}:
        raise InvalidInput("--records: neither A nor B is in a record file; leave it out")
    if not named & {"best", "fastest"}:
        refuse_unused_options(("any_toolchain",), "neither A nor B is best or fastest; leave it out")
    if "best" not in named:
        refuse_unused_options(
            CHOICE_OPTIONS, "it defines the best schedule, and neither A nor B is best; leave it out"
        )


def _label_schedule(argument: str, rule: SelectionRule) -> str:
    return argument if argument != "best" or _is_file(argument) else f"best by {rule.objective}"


def _is_file(argument: str) -> bool:
    return argument != "naive" and (argument.endswith(".json") or Path(argument).is_file())


def _find_schedule(
    argument: str,
    request: OperatorRequest,
    records: Path | None,
    device: Device,
    rule: SelectionRule,
    any_toolchain: bool,
) -> Schedule:
    """Find the schedule that an argument names: a file, a digest, "naive", "best" or "fastest"."""
    from ekc.devices.recording import RecordedDevice
    from ekc.ir.schedule.naive import make_naive_schedule
    from ekc.search.database.measured_set import find_recorded_schedule, find_schedule

    if argument == "naive":
        if request.is_empty:
            raise InvalidInput("naive: name the operator after A and B, e.g. matmul 512 512 512")
        return make_naive_schedule(request.make_operator())
    if _is_file(argument):
        return read_schedule(Path(argument), "")
    op = None if request.is_empty else request.make_operator()
    if isinstance(device, RecordedDevice):
        return find_recorded_schedule(argument, device, op, rule)
    if records is None:
        raise InvalidInput(
            f"{argument!r} is no schedule file (.json); to name a schedule on file, add --records"
        )
    return find_schedule(argument, records, device, op, rule, any_toolchain)


def _format_exact_account(
    explanation: SimulatedExplanation, schedule_a: Schedule, labels: tuple[str, str]
) -> str:
    sides = (explanation.a, explanation.b)
    scale, unit = choose_unit([side.energy_j for side in sides], "J")
    seconds, unit_s = choose_unit([side.latency_s for side in sides], "s")
    total = explanation.difference_j
    rows = [
        (
            line.cause,
            _format_line_count(line.count_a, line.unit),
            _format_line_count(line.count_b, line.unit),
            line.unit,
            format_figure(line.energy_a_j, scale),
            format_figure(line.energy_b_j, scale),
            format_signed(line.difference_j, scale),
        )
        for line in explanation.lines
        if line.energy_a_j or line.energy_b_j
    ]
    joules = [format_figure(side.energy_j, scale) for side in sides]
    sums = ("energy", "", "", "", *joules, format_signed(total, scale))
    clocks = ("clock", *(format_figure(side.clock_mhz) for side in sides), "MHz", "", "", "")
    times = ("latency", *(format_figure(side.latency_s, seconds) for side in sides), unit_s, "", "", "")
    title = (
        f"{str(schedule_a.op).splitlines()[0]} on {explanation.device}: "
        f"{labels[1]} (B) against {labels[0]} (A)\n"
        "Simulated: the device's own account of its energy, the board warm. Nothing ran on a GPU.\n"
    )
    headers = ("cause", "A", "B", "", f"A [{unit}]", f"B [{unit}]", f"B - A [{unit}]")
    return format_table(headers, [*rows, sums, times, clocks], title)


def _format_line_count(value: float, unit: str) -> str:
    """The count of a cause; "" for seconds, which the row "latency" has."""
    return "" if unit in ("", "s") else format_count(value)


_HEADERS = ("cause", "A", "B", "by time", "by power", "energy", "physics")


def _format_learned_account(
    explanation: LearnedExplanation, schedule_a: Schedule, labels: tuple[str, str], simulated: bool
) -> str:
    """Three tables (figures, causes, accuracy of the model) and notes."""

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
    return choose_unit((account.a.energy_j, account.b.energy_j), "J")


def _make_figure_rows(account: EnergyAccount) -> list[tuple[str, ...]]:
    from ekc.search.summary import format_relative_interval

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
    signed = format_signed(energy * account.joules_per_log, _find_energy_unit(account)[0])
    return cause, "", "", *parts, "" if prior is None else _format_percent(account, prior), signed


def _format_model_quality(explanation: LearnedExplanation) -> str:
    from ekc.search.explain.schedule_model import FOLDS

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
