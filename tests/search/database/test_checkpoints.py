"""A record file alone, without its log, holds a run up to its last seconds, also one that kill -9 ended."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

import ekc
from ekc.cli.main import main
from ekc.search.database import database
from ekc.search.database.database import RecordStore
from tests.search.database.test_database import KEY, ROOT, ROW
from tests.search.helpers import tune

SOON_S, LIMIT_S = 0.05, 60.0
STUCK = 5
"""The call of the meter that takes longer than any test."""

RUN = f"""
import sys, time
import ekc
from ekc.devices.simulated.device import SimulatedDevice
from ekc.search.database import database
from ekc.search.database.database import RecordStore

database.CHECKPOINT_INTERVAL_S = {SOON_S}
add, calls = RecordStore.add, []
def add_and_print(self, row):
    filed = add(self, row)
    print(filed.id, flush=True)
    return filed
RecordStore.add = add_and_print
time_kernel = SimulatedDevice.time
def stuck(self, kernel, **rest):
    calls.append(kernel)
    if len(calls) == {STUCK}:
        print("stuck", flush=True)
        time.sleep(1000)
    return time_kernel(self, kernel, **rest)
SimulatedDevice.time = stuck
ekc.tune(ekc.matvec(96, 64), target="a100", trials=8, records=sys.argv[1], progress=False)
"""
WRITER = f"""
import sys
from ekc.search.database import database
from ekc.search.database.database import RecordKey, RecordRow, RecordStore

database.CHECKPOINT_INTERVAL_S = {SOON_S}
key = RecordKey("a100", True, "fixed", "ones", "580.1", "13.0", "{{}}", "d")
with RecordStore(sys.argv[1]) as store:
    while True:
        print(store.add(RecordRow("failure", key, "[]", "ok")).id, flush=True)
        if sys.stdin.readline() != "go on\\n":
            break
"""


@contextmanager
def started(script: str, file: Path) -> Iterator[tuple[IO[str], IO[str], Callable[[], None]]]:
    """Its stdin and stdout, and what kills it; it is killed in any case."""
    with subprocess.Popen(
        [sys.executable, "-c", script, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:

        def kill() -> None:
            process.send_signal(signal.SIGKILL)
            process.wait()

        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdin, process.stdout, kill
        finally:
            kill()


def rows_alone(file: Path) -> int:
    """Rows of a copy of the file, without its log."""
    alone = file.with_name("alone.db")
    for beside in file.parent.glob("alone.db*"):
        beside.unlink()
    shutil.copyfile(file, alone)
    with RecordStore(alone, create=False) as store:
        return len(list(store.read_rows()))


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < deadline, f"not within {LIMIT_S:g} s"
        time.sleep(0.02)


def test_killed_run_leaves_rows_in_file_without_log(tmp_path: Path) -> None:
    """Nothing is committed while it waits: the rows before are moved all the same."""
    file = tmp_path / "r.db"
    with started(RUN, file) as (_, output, kill):
        filed = [int(line) for line in iter(output.readline, "stuck\n")]
        assert filed
        wait_for(lambda: rows_alone(file) == len(filed))
        kill()
    assert rows_alone(file) == filed[-1]


def test_rows_are_moved_one_by_one(tmp_path: Path) -> None:
    """Each row once the row before it has reached the file."""
    file = tmp_path / "r.db"
    with started(WRITER, file) as (ask, output, kill):
        for number in range(1, 5):
            assert int(output.readline()) == number
            wait_for(lambda: rows_alone(file) == number)  # noqa: B023 - called here
            print("go on", file=ask, flush=True)
        output.readline()
        kill()
    assert 4 <= rows_alone(file) <= 5
    with RecordStore(file) as store:
        assert len(list(store.read_rows())) == 5, "with its log it has them all"


def test_rows_are_moved_after_a_reader_has_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "CHECKPOINT_INTERVAL_S", SOON_S)
    file = tmp_path / "r.db"
    moves: list[bool] = []
    move = database._move_rows
    monkeypatch.setattr(database, "_move_rows", lambda path: moves.append(move(path)) or moves[-1])
    with RecordStore(file) as store:
        for draw in range(3):
            store.add(replace(ROW, key=replace(KEY, draw=draw)))
        with sqlite3.connect(file) as reader:
            reader.execute("begin")
            reader.execute("select * from trials").fetchone()
            store.add(replace(ROW, key=replace(KEY, draw=3)))
            wait_for(lambda: False in moves)
        reader.close()
        wait_for(lambda: rows_alone(file) == 4)


def test_new_store_is_a_record_file(tmp_path: Path) -> None:
    with RecordStore(tmp_path / "r.db"):
        assert rows_alone(tmp_path / "r.db") == 0


def test_checkpoint_interval_is_half_of_documented_limit() -> None:
    """A move that another process cut short is repeated: two intervals."""
    assert 2 * database.CHECKPOINT_INTERVAL_S <= 30


def test_checkpoint_thread_starts_with_first_row_and_ends(tmp_path: Path) -> None:
    def threads() -> set[str]:
        return {thread.name for thread in database.threading.enumerate()}

    with RecordStore(tmp_path / "r.db") as store:
        assert "ekc-checkpoints" not in threads()
        store.add(ROW)
        assert "ekc-checkpoints" in threads()
    assert "ekc-checkpoints" not in threads()


# A log beside the file


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files as a kill leaves them: the last row is in the log alone."""
    folder = tmp_path_factory.mktemp("left")
    tune(ekc.matmul(16, 16, 16), trials=2, records=folder / "r.db")
    with RecordStore(folder / "r.db") as store:
        store.add(ROW)
        for name in ("r.db", "r.db-wal"):
            shutil.copyfile(folder / name, folder / f"left-{name}")
    return folder


def copy_left(left: Path, folder: Path) -> None:
    for name in ("r.db", "r.db-wal"):
        shutil.copyfile(left / f"left-{name}", folder / name)


COMMANDS = (
    "best matmul 16 16 16 --records r.db",
    "show matmul 16 16 16 --records r.db",
    "export matmul 16 16 16 --records r.db --out o",
    "explain fastest best --records r.db",
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda line: str(line).split()[0])
def test_reading_commands_warn_of_log(
    command: str,
    left: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy_left(left, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if "-wal" in line]
    assert warned == [
        "ekc: warning: r.db-wal is beside r.db: a run is under way or was killed, and its last rows may be "
        "in the -wal file alone; copy both files together"
    ]
    assert not Path("r.db-wal").exists(), "the command moved what was in it"


def test_python_warns_of_log_with_rows_only(left: Path, tmp_path: Path) -> None:
    op = ekc.matmul(16, 16, 16)
    copy_left(left, tmp_path)
    with pytest.warns(RuntimeWarning, match="r.db-wal is beside r.db"):
        ekc.best(op, tmp_path / "r.db", "a100")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ekc.best(op, tmp_path / "r.db", "a100")
        tune(ekc.matvec(8, 8), trials=1, records=tmp_path / "n.db")
