"""Processor seconds and memory of `ekc best` and `ekc records list` on a record file of a million rows.

    python -m benchmarks.search.record_scale [--json FILE] [--seed N] [--rows N] [--file FILE]

The file holds schedules of matmul 1024^3 with made-up figures: each was timed once, metered once, and timed
twice in the finals. Their conditions are those of the simulated a100 here, so that `ekc best` compares all of
them. Each command has a process of its own, with limits far above the bars. The seconds are those of the
processor, with the start of Python. Each command runs twice, and the second run counts: the first one leaves
the bytecode of all modules. `--file` keeps the file.
"""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import ekc
from benchmarks.common.script import Arguments, Column, format_lines, make_main
from ekc import devices
from ekc.codegen.generate import compile_schedule
from ekc.errors import EkcError, InvalidInput
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.data.defaults import MEASURING
from ekc.search.database import rows as sql
from ekc.search.database.database import RecordStore
from ekc.search.database.rows import RecordRow, digest_text
from ekc.search.loop.measure import Measurer

SIDE, TARGET = 1024, "a100"
BARS = {"cpu_s": 5.0, "peak_mb": 500.0}
"""Processor seconds and MB of resident memory of a command, at most."""
ROWS_PER_SCHEDULE = 4
MAX_ROWS = ROWS_PER_SCHEDULE * SIDE**2
LIMIT_S, LIMIT_BYTES = 120, 8 << 30
"""Processor seconds and address space after which a command is ended."""
COMMANDS = {
    "best": f"best matmul {SIDE} {SIDE} {SIDE} --target {TARGET} --records",
    "records list": "records list",
}
# The peak of a process before `exec` would count in `ru_maxrss`.
PROGRAM = """
import json, sys, time
from ekc.cli import main
status = main(sys.argv[1:])
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
figures = {"status": status, "cpu_s": time.process_time(), "peak_mb": int(peak) * 1024 / 1e6}
print(json.dumps(figures), file=sys.stderr)
"""
COLUMNS = (
    Column("command", "command"),
    Column("rows", "rows", ",d"),
    Column("CPU s", "cpu_s", ".2f"),
    Column("wall s", "wall_s", ".2f"),
    Column("peak MB", "peak_mb", ".0f"),
    Column("", "pass"),
)
OPTIONS = {
    "--rows": {"type": int, "default": 1_000_000, "help": "rows of the file, default %(default)s"},
    "--file": {"type": Path, "help": "new file that stays; else one that is removed"},
}


def measure_templates(file: Path) -> tuple[RecordRow, RecordRow]:
    """Time and meter the naive schedule into a new record file; the two rows."""
    device, schedule = devices.open(TARGET), make_naive_schedule(ekc.matmul(SIDE, SIDE, SIDE))
    kernel = compile_schedule(schedule, device.arch, device.limits)
    with RecordStore(file) as store:
        measurer = Measurer(device, store)
        measurer.time(schedule, lambda: kernel)
        measurer.meter(schedule, lambda: kernel, MEASURING.label_window_s)
        timing, metering = (next(store.read_rows(kind=kind)) for kind in ("timing", "metering"))
    return timing, metering


def make_rows(templates: tuple[RecordRow, RecordRow], count: int, seed: int) -> Iterator[RecordRow]:
    """Make the rows of `count` schedules. Each has a tile of its own, a latency of 1 to 2 times that of the
    template, and less power the slower it is."""
    timing, metering = templates
    latency_s, power_w = timing.to_timing().latency_s, metering.to_metering().power_w
    for number, slower in enumerate(np.random.default_rng(seed).uniform(1, 2, count).tolist()):
        tile = {"i": 1 + number // SIDE, "j": 1 + number % SIDE}
        text = timing.schedule
        for loop, factor in tile.items():
            text = text.replace(
                f'"loop": "{loop}", "factors": [16]', f'"loop": "{loop}", "factors": [{factor}]'
            )
        key = replace(timing.key, schedule_digest=digest_text(text))
        timed = timing.payload | {"latency_s": slower * latency_s}
        watts = power_w * (1.5 - slower / 4)
        metered = metering.payload | {"power_w": watts, "energy_j": watts * slower * latency_s}
        first = replace(timing, key=key, schedule=text, payload=timed)
        yield first
        yield replace(
            metering, key=replace(key, window_s=metering.key.window_s), schedule=text, payload=metered
        )
        yield replace(first, key=replace(key, draw=1))
        yield replace(first, key=replace(key, draw=2))


def make_record_file(file: Path, row_count: int, seed: int) -> None:
    """Make a record file of so many rows, in a tenth of the time that commits of single rows would take."""
    if not ROWS_PER_SCHEDULE <= row_count <= MAX_ROWS:
        raise InvalidInput(f"--rows is {row_count}; choose {ROWS_PER_SCHEDULE} to {MAX_ROWS:,}")
    if file.exists():
        raise InvalidInput(f"--file: {file} exists; name a new file")
    templates = measure_templates(file)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        drops = (f"drop index {name}" for name in ("trials_identity", "trials_figures"))
        for statement in ("pragma synchronous = off", "delete from trials", *drops, "begin"):
            connection.execute(statement)
        made = make_rows(templates, row_count // ROWS_PER_SCHEDULE, seed)
        connection.executemany(sql.INSERT, map(sql.row_to_sql, made))
        for statement in (sql.CREATE_INDEX, sql.CREATE_FIGURE_INDEX, "commit"):
            connection.execute(statement)


def set_limits() -> None:
    """Set the limits of a command, in its process."""
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))


def run_command(name: str, file: Path, bytecode: str) -> dict[str, Any]:
    """Run a command on a record file twice, each time in a process of its own; the figures of the second. The
    bytecode of modules is kept in the folder `bytecode`."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = bytecode
    time_command(name, file, environment)
    return time_command(name, file, environment)


def time_command(name: str, file: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Run a command in a process of its own; its figures. Raises `EkcError` if it fails."""
    began = time.perf_counter()
    words = [sys.executable, "-c", PROGRAM, *COMMANDS[name].split(), str(file)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, preexec_fn=set_limits)
    wall_s = time.perf_counter() - began
    if done.returncode:
        raise EkcError(f"ekc {name} ended with status {done.returncode}: {done.stderr[-300:]}")
    *printed, last = done.stderr.splitlines()
    figures = json.loads(last)
    if figures.pop("status"):
        raise EkcError(f"ekc {name} was refused: {printed[-1]}")
    passes = all(figures[key] <= bar for key, bar in BARS.items())
    return {"command": name, "wall_s": wall_s, "printed": done.stdout, "pass": passes} | figures


def measure(arguments: Arguments) -> dict[str, Any]:
    """Make the file, run each command on it, and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        file = arguments.file or Path(folder) / "records.db"
        make_record_file(file, arguments.rows, arguments.seed)
        print(f"{file.stat().st_size / 1e6:,.0f} MB, figures made up", flush=True)
        lines = [run_command(name, file, f"{folder}/bytecode") for name in COMMANDS]
    shown = [line | {"command": f"ekc {line['command']}", "rows": arguments.rows} for line in lines]
    print(format_lines(COLUMNS, shown))
    return {"rows": arguments.rows, "lines": lines}


main = make_main(__doc__, measure, BARS, options=OPTIONS)

if __name__ == "__main__":
    raise SystemExit(main())
