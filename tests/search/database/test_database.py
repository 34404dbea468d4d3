"""The record store keeps committed rows in any case, and refuses unusable files in one line."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from ekc.errors import InvalidInput, RecordError
from ekc.search.database.database import (
    FORMAT_VERSION,
    RecordKey,
    RecordKind,
    RecordRow,
    RecordStore,
    to_canonical_json,
)
from ekc.version import __version__

ROOT = Path(__file__).parents[3]
OPERATOR = to_canonical_json({"kind": "matmul", "m": 8})
KEY = RecordKey("a100", True, "fixed", "normal(0,1) seed 0", "580.1", "13.0", OPERATOR, "d1")
ROW = RecordRow("timing", KEY, '[["split","i",[2]]]', "ok", {"latency_s": 1e-3, "throttle": ["power cap"]})

WRITER = """
import sys
from dataclasses import replace
from ekc.search.database.database import RecordKey, RecordRow, RecordStore
who, count = sys.argv[2], int(sys.argv[3])
key = RecordKey(who, True, "fixed", "ones", "580.1", "13.0", "{}", "d")
with RecordStore(sys.argv[1]) as store:
    for draw in range(count):
        store.add(RecordRow("timing", replace(key, draw=draw), "[]", "ok", {"pad": "x" * 300}))
        print(draw, flush=True)
"""


def start_writer(path: Path, who: str, count: int) -> subprocess.Popen[str]:
    """Start a process that adds `count` rows and prints the number of each committed one."""
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), who, str(count)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuning.db"


@pytest.fixture
def filled(path: Path) -> Path:
    """A record file of several pages."""
    with RecordStore(path) as store:
        for draw in range(100):
            store.add(replace(ROW, key=replace(KEY, draw=draw), payload={"pad": "x" * 300}))
    return path


def refusal(path: Path | str, *, create: bool = True, busy_s: float = 0.1) -> str:
    """Return the error message of opening a file and reading all of it."""
    with (
        pytest.raises(RecordError) as caught,
        RecordStore(path, create=create, busy_timeout_s=busy_s) as store,
    ):
        list(store.read_rows())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@contextlib.contextmanager
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the file with SQLite."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


# Rows that are written and read


@pytest.mark.parametrize("in_memory", [True, False])
def test_row_is_read_as_written(path: Path, in_memory: bool) -> None:
    with RecordStore(None if in_memory else path) as store:
        added = store.add(ROW)
        assert added.id == 1
        assert added.created.endswith("+00:00")
        assert store.find("timing", KEY) == added
        assert list(store.read_rows()) == [added]
        assert replace(added, id=0, created="") == ROW


def test_reopened_store_has_rows(path: Path) -> None:
    with RecordStore(path) as store:
        added = store.add(ROW)
    with RecordStore(path) as store:
        assert store.find("timing", KEY) == added
        assert store.add(ROW).id == 2


def test_find_returns_latest_row(path: Path) -> None:
    with RecordStore(path) as store:
        store.add(ROW)
        again = store.add(replace(ROW, status="throttled"))
        assert store.find("timing", KEY) == again


OTHER_PARTS = {"operator": "{}", "schedule_digest": "d2", "device": "h100", "simulated": False}
OTHER_PARTS |= {"nvrtc": "12.9", "clock_regime": "free", "data_policy": "ones", "draw": 1, "window_s": 1.0}


@pytest.mark.parametrize("part", OTHER_PARTS)
def test_find_compares_every_part_of_key(part: str) -> None:
    other = replace(KEY, **{part: OTHER_PARTS[part]})
    with RecordStore(None) as store:
        store.add(ROW)
        assert store.find("timing", other) is None
        assert store.find("metering", KEY) is None
        added = store.add(replace(ROW, key=other))
        assert store.find("timing", other) == added


def test_read_rows_filters() -> None:
    other = replace(KEY, operator="{}", device="h100")
    with RecordStore(None) as store:
        store.add(ROW)
        store.add(replace(ROW, kind="failure", key=other))
        store.add(replace(ROW, key=other))
        assert [row.id for row in store.read_rows()] == [1, 2, 3]
        assert [row.id for row in store.read_rows(operator=KEY.operator)] == [1]
        assert [row.id for row in store.read_rows(device="h100", kind="timing")] == [3]
        assert [row.id for row in store.read_rows(kind="check")] == []


def test_canonical_json_of_equal_operators_is_equal() -> None:
    for equal in ({"b": 1, "a": (2, 3)}, {"a": [2, 3], "b": 1}):
        assert to_canonical_json(equal) == '{"a":[2,3],"b":1}'


def test_nan_in_payload_is_kept() -> None:
    with RecordStore(None) as store:
        store.add(replace(ROW, payload={"temperature_c": math.nan}))
        (row,) = store.read_rows()
        assert math.isnan(cast(float, row.payload["temperature_c"]))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (replace(ROW, kind=cast(RecordKind, "guess")), "must be one of timing, metering, failure, check"),
        (replace(ROW, key=replace(KEY, window_s=math.nan)), "window_s of a record is nan"),
        (replace(ROW, payload={"x": object()}), "payload of a timing record cannot be written as JSON"),
    ],
)
def test_add_refuses_values_that_cannot_be_stored(row: RecordRow, message: str) -> None:
    with RecordStore(None) as store:
        with pytest.raises(InvalidInput, match=message):
            store.add(row)
        assert list(store.read_rows()) == []


# Several processes, and kills


def test_parallel_writers_lose_no_row(path: Path) -> None:
    writers = [start_writer(path, f"w{i}", 150) for i in range(4)]
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    with RecordStore(path, create=False) as store:
        for i in range(4):
            assert [row.key.draw for row in store.read_rows(device=f"w{i}")] == list(range(150))


@pytest.mark.slow
def test_kill_9_loses_no_committed_row(path: Path) -> None:
    printed = 0
    for turn in range(3):
        with start_writer(path, f"w{turn}", 10**6) as writer:
            assert writer.stdout is not None
            for line in writer.stdout:
                if int(line) >= 40 + turn:
                    writer.send_signal(signal.SIGKILL)
                    break
            printed = int(([line, *writer.stdout])[-1])
        with RecordStore(path) as store:  # resumes on what the dead process left
            draws = [row.key.draw for row in store.read_rows(device=f"w{turn}")]
            assert draws == list(range(len(draws)))
            # One more than printed may be in: committed, and killed before the print.
            assert printed + 1 <= len(draws) <= printed + 2


def test_blank_file_is_initialised(path: Path) -> None:
    path.touch()
    assert refusal(path, create=False) == f"{path} is empty: no record was ever written to it"
    with RecordStore(path) as store:
        store.add(ROW)


def test_locked_file_is_refused_after_timeout(filled: Path) -> None:
    with raw(filled) as other, RecordStore(filled, busy_timeout_s=0.2) as store:
        other.execute("begin immediate")
        assert store.find("timing", KEY) is not None  # reading goes on
        # Read from SQLite, as a busy machine may take longer by the clock.
        assert store._read_pragma("busy_timeout") == 200
        began = time.monotonic()
        with pytest.raises(RecordError) as caught:
            store.add(ROW)
        assert time.monotonic() - began > 0.15
        assert str(caught.value) == (
            f"{filled} is locked by another process; close it or use another --records file"
        )
        other.execute("rollback")
        assert store.add(ROW).id == 101


def test_new_locked_file_is_refused(path: Path) -> None:
    with raw(path) as other:
        other.execute("begin exclusive")
        assert "is locked by another process" in refusal(path)


# Files that cannot be used


def make_foreign_database(path: Path) -> None:
    with raw(path) as other:
        other.execute("create table trials (id)")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_text("latency,energy\n" * 100), "is not an SQLite file"),
        (lambda path: path.write_text("short"), "is not an SQLite file"),
        (lambda path: path.write_text("SQLite format 2"), "is not an SQLite file"),
        (make_foreign_database, "is an SQLite file, but not a record file of ekc"),
    ],
)
def test_other_file_is_refused(path: Path, make: Callable[[Path], object], words: str) -> None:
    make(path)
    before = path.read_bytes()
    for create in (True, False):
        assert f"{path} {words}" in refusal(path, create=create)
    assert path.read_bytes() == before


def test_file_of_newer_ekc_is_refused(filled: Path) -> None:
    with raw(filled) as other:
        other.execute("pragma user_version = 7")
    message = refusal(filled)
    assert f"record format 7 of a newer ekc; this is ekc {__version__}" in message
    assert f"reads format {FORMAT_VERSION}" in message


@pytest.mark.parametrize("length", [1, 50, 99, 100, 600, 4096, 5000, 20000, -4096, -1])
def test_truncated_file_is_refused(filled: Path, length: int) -> None:
    data = filled.read_bytes()
    filled.write_bytes(data[:length])
    message = refusal(filled, create=length % 2 == 0)
    assert "is damaged or cut short" in message or "first bytes are damaged" in message
    assert filled.read_bytes() == data[:length]


def test_damaged_pages_are_refused(filled: Path) -> None:
    data = bytearray(filled.read_bytes())
    data[3 * 4096 :] = os.urandom(len(data) - 3 * 4096)
    filled.write_bytes(data)
    assert str(filled) in refusal(filled)


@pytest.mark.parametrize("damage", ["'{'", "null", "x'ff'", "cast(x'22ff22' as text)", "'[]'"])
def test_damaged_payload_is_refused(filled: Path, damage: str) -> None:
    with raw(filled) as other:
        other.execute("pragma ignore_check_constraints = on")
        other.execute("pragma writable_schema = on")
        other.execute("update sqlite_schema set sql = replace(sql, 'payload text not null', 'payload')")
    with raw(filled) as other:
        other.execute(f"update trials set payload = {damage} where id = 7")
    assert str(filled) in refusal(filled)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "{0} is a folder; name a file in it, such as {0}/tuning.db"),
        ("/result/x.db", "folder {0}/result does not exist; did you mean {0}/results?"),
        ("/q/q/x.db", "folder {0}/q/q does not exist; create it, or use a file in {0}"),
        ("/pipe", "{0}/pipe is not a plain file; use another --records file"),
        ("/" + "x" * 300, "{0}/" + "x" * 300 + " cannot be opened: File name too long"),
    ],
)
def test_unusable_path_is_refused(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert refusal(f"{tmp_path}{name}") == words.format(tmp_path)


def test_file_name_with_null_byte_is_refused(tmp_path: Path) -> None:
    assert "cannot be opened: a name cannot hold a null byte" in refusal(f"{tmp_path}/a\0b")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that even root cannot write to")
def test_unwritable_folder_is_refused() -> None:
    assert "/proc/tuning.db cannot be written" in refusal("/proc/tuning.db")


def test_file_name_with_uri_characters_works(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory&b#c%20 d.db"
    with RecordStore(path) as store:
        store.add(ROW)
    assert path.exists()


# Reading only


def test_reading_makes_no_file_and_writes_nothing(tmp_path: Path, filled: Path) -> None:
    message = refusal(tmp_path / "tunings.db", create=False)
    assert message == f"there is no record file {tmp_path / 'tunings.db'}; did you mean {filled}?"
    assert "; ekc tune --records writes one" in refusal(tmp_path / "q", create=False)
    with RecordStore(filled, create=False) as store:
        assert len(list(store.read_rows())) == 100
        with pytest.raises(RecordError, match="cannot be written"):
            store.add(ROW)
    assert [p.name for p in tmp_path.iterdir()] == [filled.name]


def test_reading_where_nothing_can_be_written(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may write anywhere, so the answer is what is faked.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with RecordStore(filled, create=False) as store:
        assert len(list(store.read_rows())) == 100
        assert [p.name for p in filled.parent.iterdir()] == [filled.name]


def test_reader_sees_rows_of_open_writer(filled: Path) -> None:
    with RecordStore(filled) as writer, RecordStore(filled, create=False) as reader:
        added = writer.add(ROW)
        assert reader.find("timing", KEY) == added


def test_full_disk_is_one_line() -> None:
    with RecordStore(None) as store:
        store.add(ROW)
        store._connection.execute("pragma max_page_count = 1")
        with pytest.raises(RecordError, match="cannot grow: the disk is full"):
            store.add(replace(ROW, payload={"pad": "x" * 50_000}))
        assert store.find("timing", KEY) is not None


def test_open_transaction_is_rolled_back_before_next_row(path: Path) -> None:
    with RecordStore(path) as store:
        first = store.add(ROW)
        store._connection.execute("begin immediate")
        store._connection.execute("delete from trials")
        second = store.add(replace(ROW, status="later"))
    with RecordStore(path) as store:
        assert [one.id for one in store.read_rows()] == [first.id, second.id]
