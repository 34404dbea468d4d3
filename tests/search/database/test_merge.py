"""Merged record files: every row once, in an order that depends on the rows alone, and all or nothing."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ekc
from ekc.devices.device import MeasurementConditions, Timing
from ekc.devices.measurement_json import measurement_to_json
from ekc.devices.statistics import Interval
from ekc.errors import InvalidInput, RecordError
from ekc.search.database.database import RecordStore
from ekc.search.database.merge import merge_records
from tests.search.database import test_database
from tests.search.database.test_database import KEY, ROOT, make_foreign_database
from tests.search.helpers import rows, tune

CONDITIONS = MeasurementConditions(
    "a100", True, "580.1", "13.0", "fixed", 1275.0, 40.0, (), "normal(0,1) seed 0", "0.1.0"
)
TIMED = measurement_to_json(Timing(1e-3, Interval(1e-3, 1e-3), 20, CONDITIONS))
ROW = replace(test_database.ROW, payload=TIMED)


def write(path: Path, added: Sequence[Any]) -> Path:
    """A record file of these rows."""
    with RecordStore(path) as store:
        for row in added:
            store.add(row)
    return path


def read(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("select * from trials order by id").fetchall()


def at(second: int, **changes: Any) -> Any:
    """A row of a time, with changes of it, of its payload or of its key."""
    own = {
        name: changes.pop(name) for name in ("kind", "payload", "status", "ekc_version") if name in changes
    }
    own["payload"] = TIMED | own.get("payload", {})
    created = f"2026-11-26T00:00:{second:02}+00:00"
    return replace(ROW, created=created, key=replace(KEY, **changes), **own)


ROWS = st.builds(
    at,
    second=st.integers(0, 2),
    kind=st.sampled_from(["timing", "check"]),
    draw=st.integers(0, 1),
    device=st.sampled_from(["a100", "h100"]),
    window_s=st.sampled_from([None, 0.5]),
    payload=st.sampled_from([{"latency_s": 1e-3}, {"latency_s": 2e-3}]),
    ekc_version=st.sampled_from(["0.1.0", "0.2.0"]),
)
FILES = st.lists(st.lists(ROWS, min_size=1, max_size=5), min_size=1, max_size=3)


@settings(max_examples=10)
@given(FILES, st.randoms(use_true_random=False), st.booleans())
def test_merge_depends_on_no_order_and_is_idempotent(files: Any, random: Any, is_in_steps: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = [write(folder / f"{n}.db", some) for n, some in enumerate(files)]
        report = merge_records(sources, folder / "all.db")
        merged = read(folder / "all.db")
        shuffled = random.sample(sources, len(sources))
        for step in [[s] for s in shuffled] if is_in_steps else [shuffled]:
            merge_records(step, folder / "other.db")
        assert read(folder / "other.db") == merged
        before = (folder / "all.db").read_bytes()
        assert merge_records([*shuffled, folder / "all.db"], folder / "all.db").added == 0
        assert (folder / "all.db").read_bytes() == before
        given_rows = {row[1:] for source in sources for row in read(source)}
        assert {row[1:] for row in merged} == given_rows
        assert [row[0] for row in merged] == list(range(1, len(given_rows) + 1))
        assert [row[1] for row in merged] == sorted(row[1] for row in merged)
        assert report.rows == report.added == len(given_rows)


def test_repeated_measurements_are_kept_and_counted(tmp_path: Path) -> None:
    a = write(tmp_path / "a.db", [at(1), at(5, draw=1), at(2, kind="check", status="ok")])
    b = write(
        tmp_path / "b.db",
        [at(3, payload={"latency_s": 2.0}), at(4, kind="check", status="ok"), at(5, draw=1)],
    )
    report = merge_records([b, a], tmp_path / "all.db")
    assert [source.rows for source in report.sources] == [3, 3]
    assert (report.rows, report.added, report.repeated, len(report.conflicts)) == (5, 5, 2, 1)
    assert (report.conflicts[0].kind, report.conflicts[0].rows) == ("timing", 2)
    assert "2 measurements made more than once" in str(report)
    assert "1 with different figures: all rows are kept, the latest counts" in str(report)
    with RecordStore(tmp_path / "all.db", create=False) as store:
        latest = store.find("timing", KEY)
        assert latest is not None
        assert latest.payload["latency_s"] == 2.0


@pytest.mark.parametrize(
    "part", [{"driver": "581"}, {"nvrtc": "12.9"}, {"clock_regime": "free"}, {"data_policy": "ones"}]
)
def test_other_conditions_stay_separate(part: dict[str, str], tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.db", [at(1)]), write(tmp_path / "b.db", [at(2, **part)])
    report = merge_records([a, b], tmp_path / "all.db")
    assert (report.rows, report.repeated, report.conflicts) == (2, 0, ())


def test_merge_into_a_file_that_exists_sorts_its_rows_too(tmp_path: Path) -> None:
    into, more = write(tmp_path / "all.db", [at(2), at(4)]), write(tmp_path / "a.db", [at(3), at(1), at(2)])
    report = merge_records([more], into)
    assert (report.rows, report.added) == (4, 2)
    assert [(row[0], row[1][17:19]) for row in read(into)] == [(1, "01"), (2, "02"), (3, "03"), (4, "04")]
    assert write(into, [at(9)]) == into, "the next row has the next number"
    assert read(into)[-1][0] == 5


def test_gpus_of_one_name_are_counted(tmp_path: Path) -> None:
    payload, other = ({"conditions": TIMED["conditions"] | {"gpu": gpu}} for gpu in ("GPU-1", "GPU-2"))
    a = write(tmp_path / "a.db", [at(1, simulated=False, payload=payload), at(1, device="h100")])
    b = write(tmp_path / "b.db", [at(2, simulated=False, payload=other)])
    report = merge_records([a, b], tmp_path / "all.db")
    assert report.gpus == {"a100": 2}
    assert "a100: rows of 2 GPUs" in str(report)


def test_row_of_a_run_that_writes_meanwhile_is_kept(tmp_path: Path) -> None:
    """Its connection is open before and after the merge."""
    source, into = write(tmp_path / "a.db", [at(1)]), tmp_path / "all.db"
    with RecordStore(into) as run:
        run.add(at(2))
        merge_records([source], into)
        run.add(at(3))
    assert [row[1][17:19] for row in read(into)] == ["01", "02", "03"]


# Files that cannot be merged: one line, and nothing is written


def make_newer(path: Path) -> None:
    write(path, [ROW])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma user_version = 7")


def make_damaged_row(path: Path) -> None:
    write(path, [ROW])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("update trials set payload = '{'")


def cut(path: Path) -> None:
    write(path, [replace(ROW, payload=TIMED | {"pad": "x" * 9000})])
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_text("latency\n" * 99), "is not an SQLite file"),
        (make_foreign_database, "is an SQLite file, but not a record file of ekc"),
        (make_newer, "has record format 7 of a newer ekc"),
        (make_damaged_row, "is damaged: the payload of row 1 is not JSON"),
        (cut, "is damaged or cut short"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: None, "there is no record file"),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_unusable_source_is_refused_before_anything_is_written(
    make: Any, words: str, exists: bool, tmp_path: Path
) -> None:
    good, bad, into = write(tmp_path / "a.db", [at(1)]), tmp_path / "bad.db", tmp_path / "all.db"
    make(bad)
    if exists:
        write(into, [at(2)])
    before = into.read_bytes() if exists else None
    names = sorted(tmp_path.iterdir())
    with pytest.raises(RecordError, match=words) as caught:
        merge_records([good, bad], into)
    assert "\n" not in str(caught.value)
    assert (into.read_bytes() if into.exists() else None) == before
    assert sorted(tmp_path.iterdir()) == names


@pytest.mark.parametrize("make", [Path.touch, lambda path: write(path, [])], ids=["0 bytes", "no rows"])
def test_empty_source_adds_nothing_with_a_warning(make: Any, tmp_path: Path) -> None:
    good, empty, into = write(tmp_path / "a.db", [at(1)]), tmp_path / "e.db", tmp_path / "all.db"
    make(empty)
    with pytest.warns(UserWarning, match="e.db holds no row: it adds nothing"):
        assert merge_records([good, empty], into).rows == 1
    with (
        pytest.warns(UserWarning, match="holds no row"),
        pytest.raises(RecordError, match=r"there is no row to merge, so .*new\.db is not made"),
    ):
        merge_records([empty], tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ("a.db", "'a.db' is no list of files; write"),
        ([], "no file is given"),
        ([3], "sources: 3 is not a path"),
        (None, "None is no list of files"),
    ],
)
def test_bad_arguments_are_refused(sources: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=words):
        merge_records(sources, tmp_path / "all.db")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing/all.db", "folder .*missing does not exist"),
        ("", "is a folder; name a file in it"),
        ("/proc/all.db", "/proc/all.db cannot be written"),
        ("notes.txt", "is not an SQLite file"),
    ],
)
def test_unusable_file_to_merge_into_is_refused(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("my notes\n" * 99)
    source = write(tmp_path / "a.db", [at(1)])
    with pytest.raises(RecordError, match=words) as caught:
        merge_records([source], tmp_path / name)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "notes.txt"]


# Killed, and without space

SWEEP = """
import os, resource, shutil, signal, sqlite3, sys
from pathlib import Path
from ekc.errors import RecordError
from ekc.search.database.database import RecordStore
from ekc.search.database.merge import merge_records

folder = Path(sys.argv[1])
sources, into = [folder / "a.db", folder / "b.db"], folder / "all.db"
connect = sqlite3.connect
begin = into.read_bytes() if into.exists() else None


def read():
    if not into.exists():
        return None
    with RecordStore(into, create=False) as store:
        return store.read_values()


def restore():
    for path in folder.glob("all.db*"):
        path.unlink()
    for path in folder.glob(".ekc-merge-*"):
        shutil.rmtree(path)
    if begin is not None:
        into.write_bytes(begin)


def run_killed(statement):
    # Merge in a process that is killed when it begins this statement of SQL; whether it was.
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    count = 0

    def trace(_):
        nonlocal count
        count += 1
        if count == statement:
            os.kill(os.getpid(), signal.SIGKILL)

    def connect_traced(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.set_trace_callback(trace)
        return connection

    sqlite3.connect = connect_traced
    merge_records(sources, into)
    os._exit(0)


before, states, statement = read(), [], 1
restore()
merge_records(sources, into)
complete = read()
restore()
while run_killed(statement):
    states.append({repr(before): "before", repr(complete): "complete"}.get(repr(read()), "neither"))
    merge_records(sources, into)
    assert read() == complete
    restore()
    statement += 1
print(*states)

# No file may grow beyond 40 KiB: the write fails, as on a full disk.
restore()
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (40960, hard))
try:
    merge_records(sources, into)
    print("written")
except RecordError as problem:
    print(problem)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
print("unchanged" if read() == before else "changed", *sorted(path.name for path in folder.iterdir()))
"""


@pytest.mark.parametrize("exists", [True, False])
def test_killed_merge_leaves_the_file_as_it_was_or_complete(exists: bool, tmp_path: Path) -> None:
    """A process is killed at every statement of SQL in turn; then it may not write enough bytes."""
    pad = {"pad": "x" * 9000}
    write(tmp_path / "a.db", [at(n, payload=pad) for n in range(0, 8, 2)])
    write(tmp_path / "b.db", [at(n, payload=pad) for n in range(1, 8, 2)])
    if exists:
        write(tmp_path / "all.db", [at(n, payload=pad) for n in range(3, 5)])
    command = [sys.executable, "-c", SWEEP, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stderr
    states, refusal, after = ran.stdout.splitlines()
    assert set(states.split()) == {"before"}
    assert len(states.split()) > 20, "rows are written one by one"
    assert "all.db cannot be" in refusal
    assert ".ekc-merge-" not in refusal
    assert after == f"unchanged a.db{' all.db' * exists} b.db"


def test_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, connect = write(tmp_path / "a.db", [at(1, payload={"pad": "x" * 50_000})]), sqlite3.connect

    def connect_to_full_disk(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.execute("pragma max_page_count = 6")
        return connection

    into = write(tmp_path / "all.db", [at(2)])
    monkeypatch.setattr(sqlite3, "connect", connect_to_full_disk)
    for path in (into, tmp_path / "new.db"):
        with pytest.raises(RecordError) as caught:
            merge_records([source], path)
        assert str(caught.value) == f"{path} cannot grow: the disk is full"
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.db", "all.db"]
    assert len(read(into)) == 1


# Used by a run and by `ekc best`


def test_merged_file_resumes_every_task_and_holds_the_best_of_all(tmp_path: Path) -> None:
    op, files = ekc.matvec(64, 64), [tmp_path / "0.db", tmp_path / "1.db"]
    tasks = [tune(op, trials=2, seed=seed, records=file) for seed, file in enumerate(files)]
    into = tmp_path / "all.db"
    merged = merge_records(files, into)
    for seed, task in enumerate(tasks):
        again = tune(op, trials=2, seed=seed, records=into)
        assert again.best.schedule == task.best.schedule
    assert rows(into) == merged.rows, "nothing was measured again"
    best = [ekc.best(op, file, "a100", "latency").latency_s for file in files]
    found = ekc.best(op, into, "a100", "latency").latency_s
    assert None not in best
    assert found == min(x for x in best if x is not None)
