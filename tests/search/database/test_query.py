"""Candidates from record files: unreadable schedules are left out, bad figures are refused with their row."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ekc
from ekc import devices
from ekc.errors import InvalidInput
from ekc.search.database.database import RecordStore
from ekc.search.database.measured_set import find_schedule
from ekc.search.database.query import rows_to_trials
from tests.search.conftest import SharedRun
from tests.search.helpers import MV, tune


def _split_again(schedule: str) -> str:
    """Repeat the first step of a schedule, whose loop no longer exists."""
    data = json.loads(schedule)
    return json.dumps(data | {"steps": [*data["steps"], data["steps"][0]]})


@pytest.mark.parametrize(
    "spoil", [_split_again, lambda schedule: "{}"], ids=["a step refused", "no schedule"]
)
def test_unreadable_schedule_is_left_out(
    spoil: Callable[[str], str], matmul_run: SharedRun, tmp_path: Path
) -> None:
    op = ekc.matmul(64, 64, 64)
    with RecordStore(matmul_run[1], create=False) as whole, RecordStore(tmp_path / "odd.db") as file:
        *_, last = whole.read_rows(kind="metering")
        odd = last.key.schedule_digest
        for row in whole.read_rows():
            is_odd = row.key.schedule_digest == odd
            file.add(replace(row, schedule=spoil(row.schedule)) if is_odd else row)
        with pytest.warns(UserWarning, match=f"records: schedule {odd} left out: "):
            found = {t.schedule.digest for t in rows_to_trials(file.read_rows())}
        assert found == {row.key.schedule_digest for row in whole.read_rows()} - {odd}
    for known in (op, None):
        with pytest.warns(UserWarning, match="left out"):
            assert find_schedule("best", tmp_path / "odd.db", devices.open("a100"), known).digest in found
    with pytest.warns(UserWarning, match="left out"):
        assert ekc.best(op, records=tmp_path / "odd.db", target="a100").schedule.digest in found


def _changed(file: Path, to: Path, kind: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Path:
    """Copy a file with other payloads in the rows of a kind."""
    shutil.copy(file, to)
    with sqlite3.connect(to) as connection:
        found = connection.execute("select id, payload from trials where kind = ?", (kind,)).fetchall()
        rows = [(json.dumps(change(json.loads(text))), number) for number, text in found]
        connection.executemany("update trials set payload = ? where id = ?", rows)
    connection.close()
    return to


DAMAGED: dict[str, tuple[str, dict[str, Any]]] = {
    "it has no latency_s, interval_s, samples, conditions": ("timing", {}),
    "latency_s is 'fast', which is no float": ("timing", {"latency_s": "fast"}),
    "latency_s is 0; it must be a finite number above 0": ("timing", {"latency_s": 0}),
    "samples_s is 3, which is no tuple": ("timing", {"samples_s": 3}),
    "it has no shared_bytes, spill_store_bytes, spill_load_bytes, stack_bytes": (
        *("timing", {"resources": [{"registers": 32}]}),
    ),
    "conditions is None, which is no MeasurementConditions": ("timing", {"conditions": None}),
    "interval_s is 0 to 0; low <= high and low \\+ high > 0 are needed": (
        *("timing", {"interval_s": {"low": 0, "high": 0}}),
    ),
    "power_w is nan; it must be a finite": ("metering", {"power_w": math.nan}),
}


@pytest.mark.parametrize("message", DAMAGED)
def test_bad_figure_is_refused_with_file_and_row(message: str, matvec_records: Path, tmp_path: Path) -> None:
    kind, damage = DAMAGED[message]
    file = _changed(matvec_records, tmp_path / "odd.db", kind, lambda payload: damage and payload | damage)
    with pytest.raises(ekc.RecordError, match=rf"odd\.db is damaged: row \d+ holds no {kind}: {message}"):
        ekc.best(MV, records=file, target="a100")


def test_run_ends_at_damaged_row(matvec_records: Path, tmp_path: Path) -> None:
    for kind in ("timing", "metering"):
        file = _changed(matvec_records, tmp_path / f"{kind}.db", kind, lambda payload: {})
        with pytest.raises(ekc.RecordError, match=rf"{kind}\.db is damaged: row \d+ holds no {kind}"):
            tune(records=file)


def test_unknown_field_is_ignored(matvec_records: Path, tmp_path: Path) -> None:
    file = _changed(
        matvec_records, tmp_path / "newer.db", "timing", lambda payload: payload | {"mood": "good"}
    )
    known, newer = (ekc.best(MV, records=records, target="a100") for records in (matvec_records, file))
    assert newer.to_json() == known.to_json()


def test_best_returns_winner_of_run(tmp_path: Path) -> None:
    file = tmp_path / "r.db"
    result = tune(records=file, clocks="search")
    known = ekc.best(MV, records=file, target="a100")
    assert known.schedule == result.best.schedule
    assert known.energy_j == pytest.approx(result.best.energy_j)
    assert known.latency_s == pytest.approx(result.best.latency_s)
    with pytest.raises(InvalidInput, match="no metered schedule"):
        ekc.best(MV, records=file, target="h100")


@pytest.mark.parametrize("slowdown", [-0.5, float("nan"), "fast", 11])
def test_best_refuses_bad_slowdown(slowdown: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"max_slowdown: .* is outside 0 to 10"):
        ekc.best(MV, records=tmp_path / "r.db", max_slowdown=slowdown)
