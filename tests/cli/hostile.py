"""Helpers of the tests of hostile files: good files to be damaged, commands with limits, and wrong values."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ekc
from ekc.cli import main
from ekc.ir.schedule.naive import make_naive_schedule
from tests.devices.recording.helpers import record
from tests.search.helpers import tune

MORE_BYTES, SECONDS = 1 << 30, 60
"""Address space that a command may take beside what this process has, and processor seconds."""
SIZE = "matmul 32 32 32"
BEST = f"best {SIZE} --records t.db --target a100"
LIST, SHOW = "records list t.db", "records show t.db"
SAVED = "ekc/choices/night.json"
CHOICE = {
    "settings": {"sm_mhz": 1200, "memory_mhz": None, "power_w": 250.0},
    "slowdown": 0.01,
    "slowdown_error": 0.002,
    "saving": 0.1,
    "kind": "throughput",
    "period_s": None,
    "signature": [200.0, 0.9, 0.4],
}
"""A choice of `ekc govern` that the next run of a job tries first."""


class Ended(NamedTuple):
    """Status and standard error of a command."""

    status: int
    err: str


def run_limited(command: str | Callable[[], int]) -> Ended:
    """Run a command, or a function, in a forked child; a signal is a negative status."""
    with open("err", "wb") as err:
        child = os.fork()
        if child == 0:
            status = 99
            try:
                os.dup2(err.fileno(), 2)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
                now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (now + MORE_BYTES,) * 2)
                resource.setrlimit(resource.RLIMIT_CPU, (SECONDS,) * 2)
                signal.alarm(4 * SECONDS)
                status = main(command.split()) if isinstance(command, str) else command()
                sys.stderr.flush()
            finally:
                os._exit(status)
    _, ended = os.waitpid(child, 0)
    return Ended(os.waitstatus_to_exitcode(ended), Path("err").read_text(errors="replace"))


def run_here(command: str | Callable[[], int]) -> Ended:
    """Run a command, or a function, in this process, which takes a tenth of the time."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        status = main(command.split()) if isinstance(command, str) else command()
    return Ended(status, err.getvalue())


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one good file of each kind."""
    folder = tmp_path_factory.mktemp("originals")
    found = tune(ekc.matmul(32, 32, 32), trials=2, records=folder / "t.db", clocks="search")
    assert found.plan is not None
    found.plan.write(folder / "plan.json")
    (folder / "ekc/choices").mkdir(parents=True)
    (folder / SAVED).write_text(json.dumps({"conditions": {}, "choices": [CHOICE]}))
    record(folder / "r.gz", 3)
    (folder / "s.json").write_text(make_naive_schedule(ekc.matvec(8, 8)).to_json())
    layer = '[[layer]]\nname = "one"\noperator = "matvec"\nm = 8\nk = 8\nepilogue = "relu(y"\n'
    (folder / "l.toml").write_text(layer)
    results = [
        {
            "configuration": {"a": n},
            "invalidity": "correct",
            "measurements": [{"name": "time", "value": n + 1}],
        }
        for n in range(6)
    ]
    (folder / "t4.json").write_text(json.dumps({"schema_version": "1.0.0", "results": results}))
    return folder


@pytest.fixture
def files(originals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    shutil.copytree(originals, tmp_path, dirs_exist_ok=True)
    return tmp_path


def assert_one_line(ended: Ended, words: str) -> None:
    assert ended.status == 2, ended
    assert ended.err.startswith("ekc: "), ended
    assert ended.err.count("\n") == 1, ended
    assert words in ended.err, ended


WRONG_VALUES: tuple[Any, ...] = (None, True, -1, float("nan"), float("inf"), 10**30, 10**400, "x", [], {})


def list_places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places of all values within a JSON value; of a list those in the first item."""
    parts = (
        value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    )
    return [place] * bool(place) + [
        found for name, part in parts for found in list_places(part, (*place, name))
    ]


def replace_value(text: str, place: tuple[Any, ...], wrong: object) -> str:
    """Replace the value at a place of a JSON text."""
    value = within = json.loads(text)
    for part in place[:-1]:
        within = within[part]
    within[place[-1]] = wrong
    return json.dumps(value, separators=(",", ":"))
