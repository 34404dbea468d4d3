"""`ekc recording`: show a recording, convert it to T4 JSON, replay the search on T4 JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ekc.cli.arguments import OperatorCommand, OperatorRequest, operator_arguments, refuse_options
from ekc.cli.output import FILE, json_option, log, print_result, write_text_file
from ekc.errors import InvalidInput
from ekc.file_limits import read_plain_file
from ekc.tables import count_nouns, format_rounded, format_table

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

    found = read_recording(file)
    facts = [_summarize_operator(found, number) for number in range(len(found.operators))]
    origin = found.origin
    device = {"name": origin.name, "simulated": origin.simulated, "label": origin.description}
    heads = ("operator", "schedules", "timed", "metered", "failed", "fastest [us]")
    rows = [tuple("-" if value is None else str(value) for value in one.values()) for one in facts]
    title = f"{origin.description}, {origin.driver}, {origin.clock_regime}"
    print_result(
        {"device": device, "driver": origin.driver, "operators": facts}
        if as_json
        else format_table(heads, rows, title)
    )


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

    data = to_t4(read_recording(file), None if request.is_empty else request.make_operator())
    write_text_file("--out", out, json.dumps(data))
    print_result(
        f"wrote {out}: {count_nouns(len(data['results']), 'configuration')}, {data['ekc']['device']}"
    )


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
    unit = f" {table.unit}" if table.unit else ""
    ratio = found / table.best_figure
    reached, best = format_rounded(found, 6), format_rounded(table.best_figure, 6)
    print_result(
        {"figure": figure, "unit": table.unit, **facts}
        if as_json
        else f"{figure} {reached}{unit} after {len(rows)} of {len(table.figures)} rows of {file}; "
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
