"""`ekc records`: list, show, merge and export record files. `ekc best`: the best schedule in one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ekc import devices
from ekc.cli.arguments import OperatorCommand, OperatorRequest, operator_arguments, refuse_options
from ekc.cli.output import FILE, json_option, print_result, write_text_file
from ekc.cli.sources import any_toolchain_option, choice_options, target_option
from ekc.display import shorten
from ekc.errors import InvalidInput
from ekc.models.operator_arguments import OPERATOR_KINDS
from ekc.tables import TABLE_WIDTH, choose_unit, count_nouns, format_figure, format_table, group_pairs

if TYPE_CHECKING:
    from ekc.search.database.listing import GroupSummary, NamedGroup, ScheduleSummary
    from ekc.search.database.rows import RecordRow


FILE_ARGUMENT = click.argument("file", type=FILE, callback=refuse_options)
FILES_ARGUMENT = click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=FILE, callback=refuse_options
)
STDOUT = Path("-")
MAX_STATUS_CHARS = 16
"""Characters of a status in a table, at most. A longer one has a line of its own below the table."""
_DIGEST_PATTERN = re.compile(r"[0-9a-f]{4,16}")
_SQLITE_HEAD = b"SQLite format 3\0"


@click.command(cls=OperatorCommand)
@operator_arguments
@click.option("--records", type=FILE, required=True, help="Record file (SQLite) to read.")
@any_toolchain_option
@choice_options
@target_option
@json_option
def best(
    request: OperatorRequest,
    records: Path,
    any_toolchain: bool,
    target: str,
    objective: str,
    max_slowdown: float,
    as_json: bool,
) -> None:
    """Print the best recorded schedule of an operator on a device."""
    from ekc.codegen.generate import describe_toolchain
    from ekc.search.data.selection import SelectionRule
    from ekc.search.database.query import choose_best
    from ekc.search.summary import describe_rounding, format_relative_interval, wrap_note

    op, rule, device = request.make_operator(), SelectionRule(objective, max_slowdown), devices.open(target)
    trial = choose_best(op, records, device, rule, any_toolchain)
    if as_json:
        heads = {"operator": op.to_json(), "device": {"name": device.name, "simulated": device.simulated}}
        print_result(heads | vars(rule) | trial.to_json())
        return
    latency, energy = choose_unit([trial.latency_s], "s"), choose_unit([trial.energy_j], "J")
    row = (
        format_figure(trial.latency_s, latency[0])
        + format_relative_interval(trial.latency_s, trial.latency_interval_s),
        format_figure(trial.power_w),
        format_figure(trial.energy_j, energy[0])
        + format_relative_interval(trial.energy_j, trial.energy_interval_j),
    )
    elsewhere = trial.measured_elsewhere
    afresh = f"afresh for {device.arch} with NVRTC {describe_toolchain()}"
    title = f"{str(op).splitlines()[0]} on {device.label}: best of {records}" + (
        "\nMeasured elsewhere: these figures are not of this device and toolchain." if elsewhere else ""
    )
    headers = (f"latency [{latency[1]}]", "power [W]", f"energy [{energy[1]}]")
    print_result(format_table(headers, [row], title, label_count=0))
    notes = [
        *wrap_note("best", str(rule)),
        *wrap_note("figures", f"measured elsewhere: {elsewhere}" if elsewhere else ""),
        *wrap_note("compiled", afresh if elsewhere else ""),
        *wrap_note("checked", trial.checked or "not executed"),
        *wrap_note("atomics", describe_rounding(trial)),
    ]
    print_result("\n".join(["", *notes, "", trial.schedule.to_python()]))


@click.group()
def records() -> None:
    """Look into record files, and merge them: the files that ekc tune --records writes."""


@records.command("list")
@FILES_ARGUMENT
@json_option
def list_files(files: tuple[Path, ...], as_json: bool) -> None:
    """Print what record files hold: operators, devices, conditions, counts and best figures."""
    from ekc.search.database.listing import summarize_groups

    found = [(file, summarize_groups(file)) for file in files]
    print_result(
        {"groups": [_describe_group(file, group) for file, some in found for group in some]}
        if as_json
        else "\n\n".join(_format_groups(file, some) for file, some in found)
    )


def _describe_group(file: Path, group: GroupSummary) -> dict[str, Any]:
    facts = asdict(group)
    return {"file": str(file), "operator": facts.pop("operator"), **facts.pop("conditions"), **facts}


def _format_groups(file: Path, groups: Sequence[GroupSummary]) -> str:
    """A table for each conditions in a file, with a row per operator."""
    by_conditions = group_pairs((str(group.conditions), group) for group in groups)
    return "\n\n".join(_format_conditions(f"{file}: {text}", some) for text, some in by_conditions.items())


def _format_conditions(title: str, groups: Sequence[GroupSummary]) -> str:
    seconds = choose_unit([one.best_latency_s for one in groups], "s")
    joules = choose_unit([one.best_energy_j for one in groups], "J")
    heads = ("operator", "timed", "metered", "failed", f"best [{seconds[1]}]", f"best [{joules[1]}]")
    rows = [
        (
            one.operator,
            *(str(count) for count in (one.timed, one.metered, one.failed)),
            format_figure(one.best_latency_s, seconds[0]),
            format_figure(one.best_energy_j, joules[0]),
        )
        for one in groups
    ]
    days = dict.fromkeys((min(one.first for one in groups)[:10], max(one.last for one in groups)[:10]))
    return format_table(heads, rows, _wrap_title(f"{title}; measured {' to '.join(days)}"))


def _wrap_title(title: str) -> str:
    import textwrap

    return textwrap.fill(title, TABLE_WIDTH, subsequent_indent="  ", break_on_hyphens=False)


@records.command(cls=OperatorCommand)
@FILE_ARGUMENT
@operator_arguments
@click.option("--target", help="Only rows of this device: a target, or a name that ekc records list prints.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Schedules to print, per device and conditions.",
)
@json_option
def show(file: Path, request: OperatorRequest, target: str | None, limit: int, as_json: bool) -> None:
    """Print the recorded schedules of an operator, least energy first, or the rows of one schedule.

    Instead of an operator the first digits of a schedule's digest may be given, 4 at least. OPERATOR may be
    left out if the file has only one.
    """
    from ekc.search.database.database import RecordStore, to_canonical_json
    from ekc.search.database.listing import (
        find_groups,
        list_named_groups,
        list_schedules,
        read_schedule_groups,
    )

    digest = request.kind if _is_digest(request) else None
    text = None if digest or request.is_empty else to_canonical_json(request.make_operator().to_json())
    with RecordStore(file, create=False) as store:
        groups = list_named_groups(store)
        if target is not None:
            groups = _select_device(groups, target, file)
        if digest:
            _print_schedule(file, read_schedule_groups(store, groups, digest), as_json)
            return
        found = [(group, list_schedules(store, group)) for group in find_groups(groups, text, file)]
    print_result(
        {"file": str(file), "groups": [_describe_schedules(*one, limit) for one in found]}
        if as_json
        else "\n\n".join(_format_schedules(file, *one, limit) for one in found)
    )


def _is_digest(request: OperatorRequest) -> bool:
    word = request.kind or ""
    return not request.extents and word not in OPERATOR_KINDS and bool(_DIGEST_PATTERN.fullmatch(word))


def _select_device(groups: Sequence[NamedGroup], target: str, file: Path) -> list[NamedGroup]:
    """The groups of a device, by its name in the file or as a target."""

    named = [group for group in groups if target in (group.conditions.device, group.conditions.label)]
    if named:
        return named
    device = devices.open(target)
    found = [
        group
        for group in groups
        if (group.conditions.device, group.conditions.simulated) == (device.name, device.simulated)
    ]
    if not found:
        labels = ", ".join(dict.fromkeys(group.conditions.label for group in groups))
        raise InvalidInput(f"--target: {file} holds no row of {device.label}; it holds rows of {labels}")
    return found


def _describe_schedules(
    group: NamedGroup, schedules: Sequence[ScheduleSummary], limit: int
) -> dict[str, Any]:
    heads = {"operator": group.operator, **asdict(group.conditions), "schedules": len(schedules)}
    return heads | {"shown": [_describe_schedule(one) for one in schedules[:limit]]}


def _describe_schedule(one: ScheduleSummary) -> dict[str, Any]:
    figures = one.figures
    interval = figures.energy_interval_j
    return {
        "digest": one.digest,
        "latency_s": figures.latency_s,
        "power_w": figures.power_w,
        "energy_j": figures.energy_j,
        "energy_interval_j": None if interval is None else [interval.low, interval.high],
        "timings": len(figures.timings),
        "meterings": len(figures.meterings),
        "status": figures.status,
        "checked": figures.checked,
        "last": one.last,
    }


def _format_schedules(file: Path, group: NamedGroup, schedules: Sequence[ScheduleSummary], limit: int) -> str:
    from ekc.search.summary import format_relative_interval

    shown = schedules[:limit]
    seconds = choose_unit([one.figures.latency_s for one in shown], "s")
    joules = choose_unit([one.figures.energy_j for one in shown], "J")
    heads = (
        "schedule",
        f"latency [{seconds[1]}]",
        "power [W]",
        f"energy [{joules[1]}]",
        "timings",
        "meterings",
        "status",
    )
    rows = [
        (
            one.digest,
            format_figure(one.figures.latency_s, seconds[0]),
            format_figure(one.figures.power_w),
            format_figure(one.figures.energy_j, joules[0])
            + format_relative_interval(one.figures.energy_j, one.figures.energy_interval_j),
            str(len(one.figures.timings)),
            str(len(one.figures.meterings)),
            _shorten_status(one.figures.status),
        )
        for one in shown
    ]
    rest = f"; the first {limit}, --limit shows more" if len(schedules) > limit else ""
    title = f"{file}: {group.operator} on {group.conditions}: {count_nouns(len(schedules), 'schedule')}{rest}"
    statuses = {one.digest: one.figures.status for one in shown}
    return "\n".join([format_table(heads, rows, _wrap_title(title)), *_explain_statuses(statuses)])


def _shorten_status(status: str) -> str:
    """The words before the first colon: "compile: too many registers" is "compile"."""

    return shorten(status.partition(":")[0], MAX_STATUS_CHARS)


def _explain_statuses(statuses: Mapping[str, str]) -> list[str]:
    """A line for each status, by what it is of, that a table does not show in full."""

    return [
        shorten(f"{name}: {status}", TABLE_WIDTH)
        for name, status in statuses.items()
        if _shorten_status(status) != status
    ]


def _print_schedule(file: Path, groups: Sequence[tuple[NamedGroup, list[RecordRow]]], as_json: bool) -> None:
    """Print every row of one schedule, and its steps."""
    from ekc.search.database.listing import list_measurement
    from ekc.search.database.query import require_schedule

    first, rows = groups[0]
    schedule = require_schedule(rows[0])
    measured = [(group, [list_measurement(row) for row in some]) for group, some in groups]
    heads = {"file": str(file), "operator": first.operator, "digest": schedule.digest}
    steps = [step.to_json() for step in schedule.steps]
    tables = [
        _format_measurements(f"{file}: {group.operator} on {group.conditions}", found)
        for group, found in measured
    ]
    print_result(
        heads | {"schedule": steps, "rows": [row for _, some in measured for row in some]}
        if as_json
        else "\n\n".join([*tables, schedule.to_python()])
    )


def _format_measurements(title: str, found: Sequence[dict[str, Any]]) -> str:
    seconds = choose_unit([one.get("latency_s") for one in found], "s")
    joules = choose_unit([one.get("energy_j") for one in found], "J")
    heads = (
        "kind",
        "time (UTC)",
        "draw",
        f"latency [{seconds[1]}]",
        "power [W]",
        f"energy [{joules[1]}]",
        "status",
    )
    rows = [
        (
            _describe_kind(one),
            one["created_utc"][:16].replace("T", " "),
            str(one["draw"]),
            format_figure(one.get("latency_s"), seconds[0]),
            format_figure(one.get("power_w")),
            format_figure(one.get("energy_j"), joules[0]),
            _shorten_status(one["status"]),
        )
        for one in found
    ]
    table = format_table(heads, rows, _wrap_title(title), label_count=2)
    return "\n".join([table, *_explain_statuses({one["kind"]: one["status"] for one in found})])


def _describe_kind(measurement: dict[str, Any]) -> str:
    """The kind of a row, of a metering with its window: "metering, 5 s"."""
    window = measurement.get("requested_window_s")
    return measurement["kind"] if window is None else f"{measurement['kind']}, {window:g} s"


@records.command()
@FILES_ARGUMENT
@click.option("--into", type=FILE, required=True, help="Record file to add the rows to. It may exist.")
@json_option
def merge(files: tuple[Path, ...], into: Path, as_json: bool) -> None:
    """Merge record files into one, such as those of the tasks of a job array.

    Equal rows become one, all others stay. If the merge fails or is killed, the file is as it was.
    """
    from ekc.search.database.merge import merge_records

    report = merge_records(files, into)
    print_result(report.to_json() if as_json else str(report))


@records.command()
@FILE_ARGUMENT
@click.option("--csv", "out", type=FILE, required=True, help="CSV file to write; - is standard output.")
@json_option
def export(file: Path, out: Path, as_json: bool) -> None:
    """Write all measurements as CSV: one line per row, columns named with their units."""
    from ekc.search.database.listing import format_csv

    if out == STDOUT and as_json:
        raise InvalidInput("--json: standard output takes the CSV; name a file after --csv")
    if out != STDOUT and _is_sqlite_file(out):
        raise InvalidInput(f"--csv: {out} is an SQLite file, which would be lost; name another file")
    text = format_csv(file)
    if out == STDOUT:
        click.echo(text, nl=False)
        return
    write_text_file("--csv", out, text)
    rows = text.count("\n") - 1
    facts = {"file": str(file), "csv": str(out), "rows": rows}
    print_result(facts if as_json else f"wrote {out}: {rows} rows of {file}")


def _is_sqlite_file(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE_HEAD)) == _SQLITE_HEAD
    except OSError:
        return False
