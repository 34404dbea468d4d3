"""Damaged files, and files made to harm: each gives one line and a status, within bytes and seconds; nothing
in them is executed, and nothing of the user is lost. Each command runs in a child process with limits."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import resource
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import ekc
from ekc.cli import main
from ekc.governor.live.choice_file import ChoiceFile
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.clocks.plan import ClockPlan
from ekc.search.database.database import RecordStore
from ekc.search.database.listing import list_measurement
from ekc.search.database.query import rows_to_trials
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


@pytest.fixture(scope="module")
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


# Record files


def change(*statements: str) -> Callable[[], None]:
    """Change t.db by SQL."""

    def run() -> None:
        with contextlib.closing(sqlite3.connect("t.db", isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    return run


def change_payload(kind: str, name: str, value: object) -> Callable[[], None]:
    """Change a figure in all rows of a kind, as `to_canonical_json` writes it."""

    def run() -> None:
        with contextlib.closing(sqlite3.connect("t.db", isolation_level=None)) as connection:
            query = "select id, payload from trials where kind = ?"
            for number, text in connection.execute(query, (kind,)).fetchall():
                payload = json.dumps(json.loads(text) | {name: value}, separators=(",", ":"))
                connection.execute("update trials set payload = ? where id = ?", (payload, number))

    return run


def exchange_schedules() -> None:
    """Give each schedule the text of another one."""
    with contextlib.closing(sqlite3.connect("t.db", isolation_level=None)) as connection:
        texts = dict(connection.execute("select schedule_digest, schedule from trials").fetchall())
        for digest, other in zip(texts, [*texts.values()][1:] + [*texts.values()][:1], strict=True):
            connection.execute("update trials set schedule = ? where schedule_digest = ?", (other, digest))


def replace_table_by_view() -> None:
    """A view without an end under the name of the table."""
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n)"
    columns = "id created kind operator operator_hash schedule_digest schedule device simulated driver nvrtc"
    columns += " clock_regime data_policy ekc_version draw window_s payload status"
    view = f"create view trials as {endless} select {', '.join(f'i as {c}' for c in columns.split())} from n"
    change("drop table trials", view)()


def name_victim_in_journal() -> None:
    """A rollback journal that names a super-journal, which SQLite would delete."""
    victim = str(Path("victim").resolve()).encode()
    Path("victim").write_text("precious")
    magic = bytes.fromhex("d9d505f920a163d7")
    head = magic + (0).to_bytes(4, "big") + bytes(4) + (1).to_bytes(4, "big") + (512).to_bytes(4, "big")
    head += (4096).to_bytes(4, "big")
    tail = (1).to_bytes(4, "big") + victim + len(victim).to_bytes(4, "big")
    tail += (sum(victim) & 0xFFFFFFFF).to_bytes(4, "big") + magic
    Path("t.db-journal").write_bytes(head.ljust(512, b"\0") + tail)


TRIGGER = "create trigger empty after insert on trials begin delete from trials; end"
EXPORT = f"export {SIZE} --records t.db --target a100 --out o"
TUNE = f"tune {SIZE} --target a100 --trials 2 --records t.db --out o"
MERGE_ALL = "records merge t.db --into mine.db"
NOT_OWN, OTHER_TEXT = "is none of ekc's", "is not that of ekc"
INDEX = "trials_identity"
HUGE = "update trials set schedule = hex(zeroblob(10000000)) where id = 2"
COLUMN = "alter table trials add column more as (hex(zeroblob(100000000)))"
JOURNAL = "names a file that SQLite would delete"
RECORDS: list[tuple[str, Callable[[], None], str, str]] = [
    ("texts of other schedules", exchange_schedules, "text is that of schedule", BEST),
    ("texts of other schedules", exchange_schedules, "text is that of schedule", EXPORT),
    ("a trigger", change(TRIGGER), f"trigger 'empty' {NOT_OWN}", BEST),
    ("a trigger", change(TRIGGER), f"trigger 'empty' {NOT_OWN}", TUNE),
    ("a trigger", change(TRIGGER), f"trigger 'empty' {NOT_OWN}", MERGE_ALL),
    ("a view", replace_table_by_view, f"view 'trials' {OTHER_TEXT}", LIST),
    ("a view", replace_table_by_view, f"view 'trials' {OTHER_TEXT}", BEST),
    ("another view", change("create view v as select 1"), f"view 'v' {NOT_OWN}", SHOW),
    ("another table", change("create table other (a)"), f"table 'other' {NOT_OWN}", LIST),
    ("a virtual table", change("create virtual table words using fts5(a)"), NOT_OWN, LIST),
    ("another index", change("create index own on trials (abs(draw))"), f"index 'own' {NOT_OWN}", LIST),
    (
        "an index of another text",
        change(f"drop index {INDEX}", f"create index {INDEX} on trials (id)"),
        f"index 'trials_identity' {OTHER_TEXT}",
        LIST,
    ),
    ("a generated column", change(COLUMN), f"table 'trials' {OTHER_TEXT}", LIST),
    ("no table", change("drop table trials"), "has no table trials", LIST),
    ("1e9 W", change_payload("metering", "power_w", 1e9), "power_w is 1e+09 W", BEST),
    ("1e9 W", change_payload("metering", "power_w", 1e9), "power_w is 1e+09 W", LIST),
    ("1e9 W", change_payload("metering", "power_w", 1e9), "power_w is 1e+09 W", MERGE_ALL),
    ("a null as latency", change_payload("timing", "latency_s", None), "latency_s is None", MERGE_ALL),
    (
        "above the power cap",
        change_payload("metering", "power_w", 900.0),
        "power cap of the board 250 W",
        BEST,
    ),
    ("negative power", change_payload("metering", "power_w", -5.0), "power_w is -5", BEST),
    ("infinite power", change_payload("metering", "power_w", float("inf")), "power_w is inf", SHOW),
    ("NaN as latency", change_payload("timing", "latency_s", float("nan")), "latency_s is nan", BEST),
    ("a latency of 1e-30 s", change_payload("timing", "latency_s", 1e-30), "latency_s is 1e-30 s", LIST),
    ("an energy of another time", change_payload("metering", "energy_j", 1.0), "was timed at", BEST),
    ("a null as latency", change_payload("timing", "latency_s", None), "latency_s is None", LIST),
    ("deep payload", change(f"update trials set payload = '{'[' * 100_000}'"), "is damaged", SHOW),
    ("another hash", change("update trials set operator_hash = 'ab'"), "operator_hash of row 1", LIST),
    ("huge text", change(HUGE), "more than 16,777,216 bytes", SHOW),
    ("a journal that names a file", name_victim_in_journal, JOURNAL, BEST),
    ("a journal that names a file", name_victim_in_journal, JOURNAL, LIST),
]
"""Name and function of the damage, words of the line, and the command."""


def assert_one_line(ended: Ended, words: str) -> None:
    assert ended.status == 2, ended
    assert ended.err.startswith("ekc: "), ended
    assert ended.err.count("\n") == 1, ended
    assert words in ended.err, ended


@pytest.mark.parametrize(
    ("damage", "words", "command"),
    [row[1:] for row in RECORDS],
    ids=[f"{row[0]}, {row[3].split()[0]}" for row in RECORDS],
)
def test_hostile_record_file(damage: Callable[[], None], words: str, command: str, files: Path) -> None:
    damage()
    shutil.copyfile("t.db", "before.db")
    assert_one_line(run_limited(command), words)
    assert Path("t.db").read_bytes() == Path("before.db").read_bytes(), "nothing in it changed"
    assert not Path("mine.db").exists()
    assert not Path("victim").exists() or Path("victim").read_text() == "precious"


def test_trigger_that_comes_during_a_run_is_refused(files: Path) -> None:
    with RecordStore("t.db", create=True) as store:
        rows = list(store.read_rows())
        change(TRIGGER)()
        with pytest.raises(ekc.RecordError, match="trigger 'empty' is none of ekc's"):
            store.add(rows[0])
    with contextlib.closing(sqlite3.connect("t.db")) as connection:
        assert connection.execute("select count(*) from trials").fetchone()[0] == len(rows)


def test_file_of_an_earlier_ekc_is_read_and_gets_the_index(files: Path) -> None:
    expected = run_limited(BEST)
    change("drop index trials_figures")()
    assert run_limited(BEST) == expected == Ended(0, "")
    assert run_limited(LIST) == Ended(0, "")
    RecordStore("t.db", create=True).close()
    with contextlib.closing(sqlite3.connect("t.db")) as connection:
        assert connection.execute("select 1 from sqlite_master where name = 'trials_figures'").fetchone()


# Other files


def write(content: bytes) -> Callable[[Path], None]:
    return lambda path: (path.unlink(), path.write_bytes(content), None)[-1]


def link(target: str) -> Callable[[Path], None]:
    return lambda path: (path.unlink(), path.symlink_to(target), None)[-1]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 36)


def read_saved_choice() -> int:
    """Read the saved choice as `ekc govern` does: a note on standard error says why it is not used."""
    notes: list[str] = []
    found = ChoiceFile("night", {}, notes.append).read()
    sys.stderr.writelines(f"ekc: {note}\n" for note in notes)
    return 0 if found else 2


KINDS: dict[str, str | Callable[[], int]] = {
    "t.db": LIST,
    "r.gz": "recording show r.gz",
    "l.toml": "tune --model l.toml --quiet",
    "plan.json": "govern --plan plan.json -- true",
    "s.json": "show --schedule s.json",
    "t4.json": "recording search t4.json --trials 3",
    SAVED: read_saved_choice,
}
DAMAGES: dict[str, Callable[[Path], None]] = {
    "empty": write(b""),
    "cut": cut,
    "a folder": make_folder,
    "a pipe": make_pipe,
    "a link to /dev/zero": link("/dev/zero"),
    "64 GiB of zeros": make_sparse,
    "nested 10^6 times": write(b"[" * 1_000_000),
    "10^6 keys": write(b'{"a":' * 1_000_000),
    "many values": write(b"[" + b"[]," * 6_000_000 + b"[]]"),
    "blanks": write(b" " * 70_000_000),
    "wrong encoding": write("[[läyer]]".encode("latin-1")),
    "NaN": write(b"NaN"),
    "null": write(b"null"),
    "a long number": write(b"9" * 100_000),
}


LARGE = {"64 GiB of zeros", "10^6 keys", "many values", "blanks"}
"""Damages that take long to write and to read."""


def test_undamaged_file(files: Path) -> None:
    # `ekc govern` needs a GPU, and the layer of l.toml has an open bracket, so that nothing is tuned.
    good = [use for name, use in KINDS.items() if name not in ("plan.json", "l.toml")]
    assert [run_limited(use) for use in good] == [Ended(0, "")] * len(good)


@pytest.mark.parametrize(
    "damage", [pytest.param(one, marks=[pytest.mark.slow] * (one in LARGE)) for one in DAMAGES]
)
@pytest.mark.parametrize("name", KINDS)
def test_damaged_file(name: str, damage: str, files: Path) -> None:
    DAMAGES[damage](Path(name))
    ended = run_limited(KINDS[name])
    if (name, damage) == ("r.gz", "cut"):
        # Events before the cut are whole.
        assert ended == (0, "ekc: warning: r.gz: the last event was cut short and is left out\n")
    else:
        assert_one_line(ended, "choice of an earlier run" if name == SAVED else name)


@pytest.mark.parametrize("what", [b" ", b"[", b'{"event": "timing"}\n'])
def test_recording_that_unpacks_to_half_a_gigabyte(what: bytes, files: Path) -> None:
    # Parts of a file of gzip may follow each other.
    part = gzip.compress(what * (1_000_000 // len(what)), 9)
    Path("r.gz").write_bytes(500 * part)
    assert_one_line(run_limited("recording show r.gz"), "unpacks to more than 64 MiB")
    assert Path("r.gz").stat().st_size < 5_000_000


def test_recording_of_one_part_that_unpacks_to_more_than_the_limit(files: Path) -> None:
    with gzip.open("r.gz", "wb") as file:
        for _ in range(80):
            file.write(bytes(1_000_000))
    assert_one_line(run_limited("recording show r.gz"), "unpacks to more than 64 MiB")


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


def test_plan_schedule_and_choice_with_a_wrong_value_anywhere(files: Path) -> None:
    readers: dict[str, Callable[[str], object]] = {
        "plan.json": lambda text: ClockPlan.from_json(json.loads(text)),
        "s.json": ekc.Schedule.from_json,
        SAVED: lambda text: (Path(SAVED).write_text(text), read_saved_choice()),
    }
    for name, read in readers.items():
        whole = Path(name).read_text()
        for place in list_places(json.loads(whole)):
            for wrong in WRONG_VALUES:
                with contextlib.suppress(ekc.EkcError):
                    read(replace_value(whole, place, wrong))


def list_payload_changes(kind: str) -> list[tuple[tuple[Any, ...], object]]:
    """Each place in the payload of a kind of row, with each wrong value."""
    with contextlib.closing(sqlite3.connect("t.db")) as connection:
        (text,) = connection.execute("select payload from trials where kind = ?", (kind,)).fetchone()
    return [(place, wrong) for place in list_places(json.loads(text)) for wrong in WRONG_VALUES]


def change_first_payload(kind: str, place: tuple[Any, ...], wrong: object) -> None:
    """Change a value in the payload of the first row of a kind in t.db."""
    with contextlib.closing(sqlite3.connect("t.db", isolation_level=None)) as connection:
        query = "select id, payload from trials where kind = ? order by id"
        number, text = connection.execute(query, (kind,)).fetchone()
        changed = replace_value(text, place, wrong)
        connection.execute("update trials set payload = ? where id = ?", (changed, number))


@pytest.mark.parametrize("kind", ["timing", "metering", "check"])
def test_row_with_a_wrong_value_anywhere_is_read_or_refused(kind: str, files: Path) -> None:
    refused = []
    with RecordStore("t.db", create=False) as store:
        row = next(store.read_rows(kind=kind))  # type: ignore[arg-type]
    for place, wrong in list_payload_changes(kind):
        payload = json.loads(replace_value(json.dumps(row.payload), place, wrong))
        try:
            rows = [replace(row, payload=payload)]
            repr(rows_to_trials(rows))
            list_measurement(rows[0])
        except ekc.RecordError as problem:
            refused.append(str(problem))
    assert len(refused) > 100 or kind == "check"
    assert not [line for line in refused if "\n" in line]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["timing", "metering", "check"])
@pytest.mark.parametrize(
    "command", [BEST, LIST, SHOW, "records export t.db --csv o.csv", "records merge t.db --into m.db"]
)
def test_command_on_rows_with_a_wrong_value_anywhere(
    kind: str, command: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copyfile("t.db", "whole.db")
    for place, wrong in list_payload_changes(kind):
        shutil.copyfile("whole.db", "t.db")
        Path("m.db").unlink(missing_ok=True)
        change_first_payload(kind, place, wrong)
        status, err = main(command.split()), capsys.readouterr().err
        if status:
            assert_one_line(Ended(status, err), "t.db is damaged")
        else:
            assert err == "", (place, wrong)
