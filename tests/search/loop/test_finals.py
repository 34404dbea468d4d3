"""The finals: metered in turn, each figure one that was taken there."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import ekc
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.data.defaults import FINALS
from ekc.search.database.database import RecordStore
from ekc.search.loop import finals
from ekc.search.tuning_result import TuningResult
from tests.search.helpers import tune

MAX_GAP = timedelta(seconds=FINALS.max_metering_gap_s)


def shift(file: Path, digest: str, by: timedelta) -> None:
    """Change the time of the meterings of one schedule."""
    with sqlite3.connect(file) as connection:
        where = "kind = 'metering' and schedule_digest = ?"
        for number, created in connection.execute(
            f"select id, created from trials where {where}", (digest,)
        ).fetchall():
            then = (datetime.fromisoformat(created) + by).isoformat()
            connection.execute("update trials set created = ? where id = ?", (then, number))


def test_resumed_run_was_metered_in_turn(plain_run: TuningResult, matvec_records: Path) -> None:
    assert plain_run.best.in_turn
    assert plain_run.fastest.in_turn
    assert tune(records=matvec_records).best == plain_run.best


def test_finalist_metered_at_another_time_was_not_in_turn(
    plain_run: TuningResult, matvec_records: Path
) -> None:
    shift(matvec_records, plain_run.best.schedule.digest, 2 * MAX_GAP)
    again = tune(records=matvec_records)
    assert again.best.energies_j == plain_run.best.energies_j
    assert not again.best.in_turn
    assert not again.fastest.in_turn


NOON = datetime(2026, 1, 1, 12)


@pytest.mark.parametrize(
    ("gaps", "in_turn"),
    [
        ([7, 7, 7], True),
        ([0, 60], True),
        ([7, 61], False),
        ([7, -1], False),
        ([7, -86400], False),
        ([86400, 7], False),
        ([7, None], False),
    ],
)
def test_meterings_are_in_turn_if_gaps_are_short(gaps: list[float | None], in_turn: bool) -> None:
    times: list[datetime | None] = [NOON]
    for gap in gaps:
        times.append(None if gap is None else (times[-1] or NOON) + timedelta(seconds=gap))
    assert finals._is_in_turn(times, MAX_GAP) == in_turn


def test_baseline_metering_is_no_final_metering(tmp_path: Path) -> None:
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
