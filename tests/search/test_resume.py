"""`kill -9` at any moment, and two processes on one file: no row is lost, and the winner stays the same.

The process under test prints the number of every row once `RecordStore.add` has returned, that is,
once it is committed; what was printed must be in the file, whatever happened since.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

KILLS, KILLS_A_FILE = 20, 5
ATTEMPTS = 10
"""For two processes to meet on one file."""
SCRIPT = """
import json, sys
import ekc
from ekc.search.database.database import RecordStore

add = RecordStore.add
def add_and_print(self, row):
    filed = add(self, row)
    print(json.dumps([filed.id, filed.kind, filed.key.schedule_digest]), flush=True)
    return filed
RecordStore.add = add_and_print

print("begun", flush=True)
sys.stdin.readline()
result = ekc.tune(ekc.matvec(256, 256), target="a100", trials=10, seed=4, records=sys.argv[1], progress=False)
best = result.best
found = [best.schedule.digest, best.energy_j, best.latency_s]
print(json.dumps({"winner": found, "seconds": result.seconds}))
"""


class Process:
    """One `ekc.tune` in a process of its own, which waits for `go`."""

    def __init__(self, file: Path, cache: Path) -> None:
        self.log = file.with_suffix(".log")
        with self.log.open("a") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"EKC_CACHE_DIR": str(cache)},
            )
        self.lines: list[str] = []
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == "begun\n", self.log.read_text()

    def go(self) -> Process:
        """Itself, once it may begin."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        return self

    def kill(self, rows: int, seconds: float) -> bool:
        """Kill it `seconds` after it has printed that many rows. Returns False if it ended before."""
        assert self.child.stdout is not None
        for _ in range(rows):
            line = self.child.stdout.readline()
            self.lines.append(line)
            if not line.startswith("["):
                return False
        time.sleep(seconds)
        running = self.child.poll() is None
        if running:
            os.kill(self.child.pid, signal.SIGKILL)
        return running

    def read_output(self) -> tuple[set[tuple[int, str, str]], dict[str, object]]:
        """The rows it committed, and what it found if it came to an end."""
        assert self.child.stdout is not None
        with self.child.stdout as rest:
            self.lines += rest
        self.child.wait()
        # A line that the kill cut short is no row.
        lines = [json.loads(line) for line in self.lines if line.endswith(("]\n", "}\n"))]
        rows = {(n, kind, digest) for n, kind, digest in (x for x in lines if isinstance(x, list))}
        found = next((x for x in lines if isinstance(x, dict)), {})
        assert found or self.child.returncode == -signal.SIGKILL, self.log.read_text()
        return rows, found


def filed(file: Path) -> set[tuple[int, str, str]]:
    """Read the rows of the file, which must be undamaged."""
    with sqlite3.connect(file) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        return set(connection.execute("select id, kind, schedule_digest from trials"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compile cache for this module, so that a killed run does not pay for the same kernels again."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> dict[str, object]:
    """The winner and the rows of an undisturbed run; the second time with a warm cache."""
    for name in ("cold", "warm"):
        file = tmp_path_factory.mktemp("unbroken") / f"{name}.db"
        rows, found = Process(file, cache).go().read_output()
        assert rows == filed(file)
    return found | {"rows": {(kind, digest) for _, kind, digest in rows}}


@pytest.mark.slow
def test_run_killed_at_20_moments_loses_no_row_and_finds_same_winner(
    unbroken: dict[str, object], cache: Path, tmp_path: Path
) -> None:
    """Five kills a file, each run going on with what the last one left, then a run to the end."""
    moments = random.Random(20)
    left: list[int] = []
    files = (tmp_path / f"{number}.db" for number in itertools.count())
    for number in range(KILLS // KILLS_A_FILE):
        file, committed = next(files), set[tuple[int, str, str]]()
        while len(left) < KILLS_A_FILE * (number + 1):
            process = Process(file, cache).go()
            # Every other kill waits for some rows first, so that it falls among them.
            rows_first = moments.randint(1, 8) if len(left) % 2 else 0
            share = moments.uniform(0, 0.05 if rows_first else 0.9)
            struck = process.kill(rows_first, share * float(str(unbroken["seconds"])))
            rows, found = process.read_output()
            committed |= rows
            if committed:
                assert committed <= filed(file)
            if struck:
                left.append(len(committed))
            if found:
                assert found["winner"] == unbroken["winner"]
                assert {(kind, digest) for _, kind, digest in filed(file)} == unbroken["rows"]
                # It was quicker than its kill. A run on a whole file tells of no row, so none could be waited
                # for: on to another.
                file, committed = next(files), set()
        rows, found = Process(file, cache).go().read_output()
        assert found["winner"] == unbroken["winner"]
        assert committed | rows <= filed(file)
        assert {(kind, digest) for _, kind, digest in filed(file)} == unbroken["rows"]
    assert len(left) == KILLS
    between = [n for n in left if 0 < n < len(unbroken["rows"])]  # type: ignore[arg-type]
    assert len(between) >= KILLS // 4, f"the kills struck too early or too late to mean anything: {left}"


@pytest.mark.slow
def test_two_processes_on_one_file_lose_no_row_and_agree(
    unbroken: dict[str, object], cache: Path, tmp_path: Path
) -> None:
    """On a busy machine one may end before the other is let run: then both begin again, on a fresh file."""
    for attempt in range(ATTEMPTS):
        file = tmp_path / f"{attempt}.db"
        processes = [Process(file, cache), Process(file, cache)]
        ends = [process.read_output() for process in [process.go() for process in processes]]
        assert all(found["winner"] == unbroken["winner"] for _, found in ends)
        assert not ends[0][0] & ends[1][0], "one row, two owners"
        assert ends[0][0] | ends[1][0] == filed(file)
        assert {(kind, digest) for _, kind, digest in filed(file)} == unbroken["rows"]
        if all(rows for rows, _ in ends):
            return
    pytest.fail(f"one of the two did all the work in each of {ATTEMPTS} attempts")
