"""The finals: metered in turn, each figure one that was taken there."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import ekc
from ekc.search.database.database import RecordStore
from ekc.search.loop.finals import MAX_METERING_GAP
from ekc.search.sketches.naive import make_naive_schedule
from tests.search.runs import tune


def shift(file: Path, digest: str, by: timedelta) -> None:
    """Have the meterings of one schedule taken at another time."""
    with sqlite3.connect(file) as connection:
        where = "kind = 'metering' and schedule_digest = ?"
        for number, created in connection.execute(
            f"select id, created from trials where {where}", (digest,)
        ).fetchall():
            then = (datetime.fromisoformat(created) + by).isoformat()
            connection.execute("update trials set created = ? where id = ?", (then, number))


def test_a_run_that_resumes_at_once_was_metered_in_turn(tmp_path: Path) -> None:
    whole = tune(records=tmp_path / "r.db")
    assert whole.best.in_turn
    assert whole.fastest.in_turn
    assert tune(records=tmp_path / "r.db").best == whole.best


@pytest.mark.parametrize(
    "by", [timedelta(days=-1), -MAX_METERING_GAP, 2 * MAX_METERING_GAP, timedelta(days=1)]
)
def test_a_finalist_metered_at_another_time_was_not_in_turn(tmp_path: Path, by: timedelta) -> None:
    whole = tune(records=tmp_path / "r.db")
    shift(tmp_path / "r.db", whole.best.schedule.digest, by)
    again = tune(records=tmp_path / "r.db")
    assert again.best.energies_j == whole.best.energies_j
    assert not again.best.in_turn
    assert not again.fastest.in_turn


def test_the_first_look_at_the_naive_schedule_is_no_turn_of_the_finals(tmp_path: Path) -> None:
    op = ekc.matmul(1, 1, 1)
    result = tune(op, records=tmp_path / "r.db")
    assert result.best.schedule == make_naive_schedule(op)
    with RecordStore(tmp_path / "r.db") as store:
        found = [
            row.key.draw
            for row in store.read_rows(kind="metering")
            if row.key.schedule_digest == make_naive_schedule(op).digest
        ]
    assert found == [0, 1, 2, 3]
    assert len(result.best.energies_j) == 3
