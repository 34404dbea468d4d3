"""`ekc recording`: what a recording holds, and the JSON in which other tuners take it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ekc.cli.operators import ALLOW_NEGATIVES, OperatorRequest, operator_arguments, refuse_options
from ekc.cli.output import json_option, log, print_json, print_text
from ekc.errors import InvalidInput

FILE_ARGUMENT = click.argument("file", type=click.Path(path_type=Path), callback=refuse_options)


@click.group()
def recording() -> None:
    """Files of measured schedules, which --target recorded:FILE replays."""


@recording.command()
@FILE_ARGUMENT
@json_option
def show(file: Path, as_json: bool) -> None:
    """What is in a recording: the device, when, and for each operator how much was measured."""
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
    print_text(
        format_table(
            heads, rows, f"{found.origin.description}, {found.origin.driver}, {found.origin.clock_regime}"
        )
    )


def _summarize_operator(recorded: Any, number: int) -> dict[str, Any]:
    mine = [row for row in recorded.rows if row.operator == number]
    times = [row.find_timing().latency_s for row in mine if row.timings]
    return {
        "operator": str(recorded.operators[number]).splitlines()[0],
        "schedules": len(mine),
        "timed": len(times),
        "metered": sum(bool(row.meterings) for row in mine),
        "failed": sum(bool(row.failure) for row in mine),
        "fastest_us": float(f"{1e6 * min(times):.4g}") if times else None,
    }


@recording.command(context_settings=ALLOW_NEGATIVES)
@FILE_ARGUMENT
@operator_arguments
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The JSON file to write.")
def t4(file: Path, request: OperatorRequest, out: Path) -> None:
    """Write the rows of an operator as T4 JSON, which Kernel Tuner and its peers read.

    OPERATOR may be left out where the recording holds one only.
    """
    from ekc.devices.recording import read_recording
    from ekc.search.replay.t4 import to_t4

    data = to_t4(read_recording(file), None if request.is_empty else request.make_operator())
    try:
        out.write_text(json.dumps(data))
    except OSError as problem:
        raise InvalidInput(f"--out: {out} cannot be written ({problem.strerror})") from problem
    print_text(f"wrote {out}: {len(data['results'])} configurations, {data['ekc']['device']}")


@recording.command()
@FILE_ARGUMENT
@click.option("--figure", default="time", show_default=True, help="The measurement to make small.")
@click.option("--trials", type=click.IntRange(2, 10_000), default=100, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@json_option
def search(file: Path, figure: str, trials: int, seed: int, as_json: bool) -> None:
    """Replay the search on the T4 JSON of any tuner: what it would have found there, in how many trials."""
    import numpy as np

    from ekc.search.replay.replay import replay_search
    from ekc.search.replay.t4 import from_t4
    from ekc.search.replay.table_space import TableSpace

    try:
        table = from_t4(file.read_text(encoding="utf-8"), figure)
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
        told = f"{figure} {found:.6g}{unit} after {len(rows)} of {len(table.figures)} rows of {file}"
        print_text(
            f"{told}; the best of all is {table.best_figure:.6g}{unit} ({found / table.best_figure:.3f} times)"
        )


def _make_trial_logger(trials: int) -> Callable[[int], None]:
    """Logs how many rows were tried, every few seconds."""
    from ekc.search.progress import PROGRESS_INTERVAL_S

    began = last = time.monotonic()

    def tell(tried: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PROGRESS_INTERVAL_S:
            last = now
            log(f"{now - began:5.0f} s  {tried}/{trials} trials")

    return tell
