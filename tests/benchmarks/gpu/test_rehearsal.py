"""The rehearsal of a visit: calls that are killed go on, and what it counts."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from benchmarks.gpu import rehearsal
from benchmarks.gpu.folder import ROWS
from benchmarks.gpu.prices import METERING_S, TRIAL_S, PricedDevice, VirtualClock
from ekc.codegen.generate import compile_schedule
from ekc.devices.simulated.specs import H100
from ekc.ir.schedule.naive import make_naive_schedule
from tests.benchmarks.gpu.test_tune import SMALL
from tests.benchmarks.helpers import ROOT


def test_killed_call_loses_no_row_and_makes_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "MOST_PAYMENTS", 8)
    visit = rehearsal.Rehearsal(tmp_path / "out", 1, 0, ["--dry-run"])
    played = visit.play("versus", 4.0)
    assert (played.killed, played.starts, played.status) == (1, 2, 0), (
        tmp_path / "out.versus.txt"
    ).read_text()
    assert [*visit.faults, *visit.find_repeated_rows()] == []
    assert (played.rows, played.again > 0) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_whole_visit_can_be_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    words = ("--dry-run", "--kills", "3", "--seed", str(seed), "--out", str(tmp_path / "out"))
    assert rehearsal.main(words) == 0, capsys.readouterr().out


def test_lost_and_repeated_rows_are_faults(tmp_path: Path) -> None:
    visit = rehearsal.Rehearsal(tmp_path / "out", 0, 0, ())
    rows = [{"part": "run"}, *({"part": "check", "item": item, "status": "ok"} for item in "aba")]
    (tmp_path / "out" / ROWS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert visit.find_repeated_rows() == ["check: a has 2 rows"]


def test_clock_goes_on_in_another_process(tmp_path: Path) -> None:
    clock = VirtualClock(tmp_path / "clock")
    kernel = compile_schedule(make_naive_schedule(SMALL.op), "sm_90a")
    device = PricedDevice(H100, clock, "tune")
    device.time(kernel)
    device.meter(kernel, seconds=1.0)
    again = VirtualClock(tmp_path / "clock")
    assert again.now() == pytest.approx(TRIAL_S + METERING_S + 1.0)
    assert again.count_payments() == 2
    assert [one[:2] for one in again.read_log()] == [("tune", "timing"), ("tune", "metering")]


def test_carried_wheels_are_the_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    carried = (ROOT / "benchmarks/gpu/wheels.txt").read_text().replace("xgboost-cpu", "xgboost").splitlines()
    assert [line for line in carried if not line.startswith("#")] == project["dependencies"]
