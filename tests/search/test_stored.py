"""What is on file of schedules, put together: one that this ekc cannot read costs none of the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ekc
from ekc import devices
from ekc.search.named import named
from ekc.search.records import RecordStore
from ekc.search.stored import stored_trials
from tests.search.runs import tune


def _split_again(schedule: str) -> str:
    """A schedule with its first step once more, whose loop is gone."""
    data = json.loads(schedule)
    return json.dumps(data | {"steps": [*data["steps"], data["steps"][0]]})


@pytest.mark.parametrize(
    "spoil", [_split_again, lambda schedule: "{}"], ids=["a step refused", "no schedule"]
)
def test_a_schedule_that_cannot_be_read_is_left_out(spoil: Callable[[str], str], tmp_path: Path) -> None:
    op = ekc.matmul(64, 64, 64)
    tune(op, records=tmp_path / "whole.db")
    with RecordStore(tmp_path / "whole.db", create=False) as whole, RecordStore(tmp_path / "odd.db") as file:
        *_, last = whole.rows(kind="metering")
        odd = last.key.schedule_digest
        for row in whole.rows():
            is_odd = row.key.schedule_digest == odd
            file.add(replace(row, schedule=spoil(row.schedule)) if is_odd else row)
        with pytest.warns(UserWarning, match=f"records: schedule {odd} left out: "):
            found = {t.schedule.digest for t in stored_trials(file.rows())}
        assert found == {row.key.schedule_digest for row in whole.rows()} - {odd}
    for known in (op, None):
        with pytest.warns(UserWarning, match="left out"):
            assert named("best", tmp_path / "odd.db", devices.open("a100"), known).digest in found
    with pytest.warns(UserWarning, match="left out"):
        assert ekc.best(op, records=tmp_path / "odd.db", target="a100").schedule.digest in found
