"""Damaged record files, and those made to harm: each gives one line and a status, within bytes and seconds;
nothing in them is executed, and nothing of the user is lost. A command that could take much memory or time
runs in a child process with limits."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ekc
from ekc.cli import main
from ekc.search.database.database import RecordStore
from ekc.search.database.listing import list_measurement
from ekc.search.database.query import rows_to_trials
from tests.cli.hostile import (
    BEST,
    LIST,
    SHOW,
    SIZE,
    WRONG_VALUES,
    Ended,
    assert_one_line,
    list_places,
    replace_value,
    run_here,
    run_limited,
)


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
UNBOUNDED = {"a view", "a generated column", "deep payload", "huge text"}
"""Damages of record files that could take much memory or time."""


@pytest.mark.parametrize(
    ("name", "damage", "words", "command"),
    RECORDS,
    ids=[f"{row[0]}, {row[3].split()[0]}" for row in RECORDS],
)
def test_hostile_record_file(
    name: str, damage: Callable[[], None], words: str, command: str, files: Path
) -> None:
    damage()
    shutil.copyfile("t.db", "before.db")
    assert_one_line(run_limited(command) if name in UNBOUNDED else run_here(command), words)
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
    expected = run_here(BEST)
    change("drop index trials_figures")()
    assert run_here(BEST) == expected == Ended(0, "")
    assert run_here(LIST) == Ended(0, "")
    RecordStore("t.db", create=True).close()
    with contextlib.closing(sqlite3.connect("t.db")) as connection:
        assert connection.execute("select 1 from sqlite_master where name = 'trials_figures'").fetchone()


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
