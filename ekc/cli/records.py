"""`ekc best` and `ekc export`: results of earlier runs; `ekc recording`: recordings and T4 JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ekc.cli.arguments import OperatorCommand, OperatorRequest, operator_arguments, refuse_options
from ekc.cli.output import (
    FILE,
    cubin_option,
    format_library,
    json_option,
    log,
    log_lost_kernels,
    out_option,
    prepare_library_folder,
    print_json,
    print_text,
)
from ekc.cli.schedule_source import (
    LocatedSchedule,
    ScheduleSource,
    any_toolchain_option,
    choice_options,
    schedule_source,
    target_option,
)
from ekc.errors import InvalidInput
from ekc.file_limits import read_plain_file

if TYPE_CHECKING:
    from ekc.codegen.library.build import KernelChoice
    from ekc.devices.device import Device


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
    from ekc import devices
    from ekc.codegen.generate import describe_toolchain
    from ekc.search.data.selection import SelectionRule
    from ekc.search.database.query import choose_best
    from ekc.search.summary import (
        choose_unit,
        describe_rounding,
        format_figure,
        format_relative_interval,
        wrap_note,
    )
    from ekc.tables import format_table

    op, rule, device = request.make_operator(), SelectionRule(objective, max_slowdown), devices.open(target)
    trial = choose_best(op, records, device, rule, any_toolchain)
    if as_json:
        heads = {"operator": op.to_json(), "device": {"name": device.name, "simulated": device.simulated}}
        print_json(heads | vars(rule) | trial.to_json())
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
    print_text(format_table(headers, [row], title, label_count=0))
    notes = [
        *wrap_note("best", str(rule)),
        *wrap_note("figures", f"measured elsewhere: {elsewhere}" if elsewhere else ""),
        *wrap_note("compiled", afresh if elsewhere else ""),
        *wrap_note("checked", trial.checked or "not executed"),
        *wrap_note("atomics", describe_rounding(trial)),
    ]
    print_text("\n".join(["", *notes, "", trial.schedule.to_python()]))


@click.command(cls=OperatorCommand)
@schedule_source
@out_option
@click.option("--name", help="Name of the library. [default: name of the operator]")
@cubin_option
@json_option
def export(source: ScheduleSource, out: Path | None, name: str | None, cubin: bool, as_json: bool) -> None:
    """Write a C++ library of one kernel: a project for CMake and make, with a typed header.

    Without --records or --schedule the naive kernel is written. Two libraries of different names can be
    linked into one program; ekc bundle writes many kernels into one.
    """
    from ekc import devices
    from ekc.codegen.library.build import export as write_library
    from ekc.codegen.library.kernels import TargetBoard
    from ekc.codegen.library.legal_names import name_library

    found, device = source.find_schedule(), devices.open(source.target)
    name = name_library(name, found.schedule.op)
    folder = prepare_library_folder(out, name)
    if found.is_naive:
        log("ekc: the naive kernel, as neither --records nor --schedule is given")
    choice = _make_choice(found, device)
    board = TargetBoard(device.name, device.arch, device.simulated, device.limits.sms)
    with log_lost_kernels(folder, name):
        paths = write_library([choice], board, folder, limits=device.limits, name=name, cubin=cubin)
    if as_json:
        print_json({"digest": found.schedule.digest, "exported": [str(p) for p in paths]})
    else:
        print_text(format_library(folder, name, paths))


def _make_choice(found: LocatedSchedule, device: Device) -> KernelChoice:
    """The schedule with its figures; those of another device or toolchain are in the provenance alone."""
    from ekc.codegen.library.build import KernelChoice
    from ekc.codegen.library.kernels import KernelFigures
    from ekc.search.tuning_result import make_choice

    provenance, trial = _describe_provenance(found, device), found.trial
    if trial is None or trial.measured_elsewhere:
        return KernelChoice(found.schedule, KernelFigures(provenance=provenance))
    return make_choice(trial, provenance=provenance)


def _describe_provenance(found: LocatedSchedule, device: Device) -> dict[str, str]:
    """Origin of the schedule and of its figures, for the JSON record."""
    facts = {"origin": found.origin}
    trial = found.trial
    if trial is None:
        return facts | {"figures": "none: not measured"}
    elsewhere = trial.measured_elsewhere
    facts["device"] = elsewhere or f"{device.label}, {device.clock_regime}"
    if elsewhere:
        facts["figures"] = "measured elsewhere, on that device and with those programs; compiled afresh"
    if trial.latency_s is not None:
        facts["latency"] = f"{trial.latency_s * 1e6:.2f} us"
    if trial.energy_j is not None:
        from ekc.tables import format_rounded

        how = ("metered" if trial.metered else "predicted") + (" elsewhere" if elsewhere else "")
        facts["energy"] = f"{format_rounded(trial.energy_j * 1e3, 4)} mJ a call ({how})"
    return facts | {"result": trial.checked or "not executed"}


FILE_ARGUMENT = click.argument("file", type=FILE, callback=refuse_options)


@click.group()
def recording() -> None:
    """Read recordings: files of measured schedules that --target recorded:FILE replays."""


@recording.command()
@FILE_ARGUMENT
@json_option
def show(file: Path, as_json: bool) -> None:
    """Print the contents of a recording: the device, and the measurements of each operator."""
    from ekc.devices.recording import read_recording
    from ekc.tables import format_table

    found = read_recording(file)
    facts = [_summarize_operator(found, number) for number in range(len(found.operators))]
    if as_json:
        origin = found.origin
        device = {"name": origin.name, "simulated": origin.simulated, "label": origin.description}
        print_json({"device": device, "driver": origin.driver, "operators": facts})
        return
    heads = ("operator", "schedules", "timed", "metered", "failed", "fastest [us]")
    rows = [tuple("-" if value is None else str(value) for value in one.values()) for one in facts]
    title = f"{found.origin.description}, {found.origin.driver}, {found.origin.clock_regime}"
    print_text(format_table(heads, rows, title))


def _summarize_operator(recorded: Any, number: int) -> dict[str, Any]:
    """Measurements of one operator of a recording, as a JSON object."""
    rows = [row for row in recorded.rows if row.operator == number]
    times = [row.find_timing().latency_s for row in rows if row.timings]
    return {
        "operator": str(recorded.operators[number]).splitlines()[0],
        "schedules": len(rows),
        "timed": len(times),
        "metered": sum(bool(row.meterings) for row in rows),
        "failed": sum(bool(row.failure) for row in rows),
        "fastest_us": float(f"{1e6 * min(times):.4g}") if times else None,
    }


@recording.command(cls=OperatorCommand)
@FILE_ARGUMENT
@operator_arguments
@click.option("--out", type=FILE, required=True, help="JSON file to write.")
def t4(file: Path, request: OperatorRequest, out: Path) -> None:
    """Write the rows of an operator as T4 JSON, which Kernel Tuner and other tuners read.

    OPERATOR may be left out if the recording has only one.
    """
    from ekc.devices.recording import read_recording
    from ekc.search.replay.t4 import to_t4
    from ekc.tables import count_nouns

    data = to_t4(read_recording(file), None if request.is_empty else request.make_operator())
    try:
        out.write_text(json.dumps(data))
    except OSError as problem:
        raise InvalidInput(f"--out: {out} cannot be written ({problem.strerror})") from problem
    print_text(f"wrote {out}: {count_nouns(len(data['results']), 'configuration')}, {data['ekc']['device']}")


@recording.command()
@FILE_ARGUMENT
@click.option("--figure", default="time", show_default=True, help="Measurement to minimise.")
@click.option("--trials", type=click.IntRange(2, 10_000), default=100, show_default=True, help="Rows to try.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the search.")
@json_option
def search(file: Path, figure: str, trials: int, seed: int, as_json: bool) -> None:
    """Replay the search on the T4 JSON of any tuner: the best row it finds, in how many trials."""
    import numpy as np

    from ekc.search.replay.replay import replay_search
    from ekc.search.replay.t4 import from_t4
    from ekc.search.replay.table_space import TableSpace
    from ekc.tables import format_rounded

    try:
        table = from_t4(read_plain_file(file).decode(), figure)
    except InvalidInput as problem:
        raise InvalidInput(f"{file}: {problem}") from problem
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "not UTF-8 text"
        raise InvalidInput(f"{file} cannot be read ({reason})") from problem
    trials = min(trials, len(table.figures))
    rows = replay_search(table, TableSpace(table), trials, seed, _make_trial_logger(trials))
    found = float(np.nanmin(table.figures[rows]))
    facts = {"rows": len(table.figures), "trials": len(rows), "found": found, "best": table.best_figure}
    if as_json:
        print_json({"figure": figure, "unit": table.unit, **facts})
    else:
        unit = f" {table.unit}" if table.unit else ""
        ratio = found / table.best_figure
        reached, best = format_rounded(found, 6), format_rounded(table.best_figure, 6)
        print_text(
            f"{figure} {reached}{unit} after {len(rows)} of {len(table.figures)} rows of {file}; "
            f"the best of all is {best}{unit} ({ratio:.3f} times)"
        )


def _make_trial_logger(trials: int) -> Callable[[int], None]:
    """Make a callback that logs the number of rows tried, every few seconds."""
    from ekc.search.progress import PROGRESS_INTERVAL_S

    began = last = time.monotonic()

    def log_progress(tried: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PROGRESS_INTERVAL_S:
            last = now
            log(f"{now - began:5.0f} s  {tried}/{trials} trials")

    return log_progress
