"""The rehearsal of a visit: calls that are killed go on, and what it counts."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks.gpu import rehearsal
from benchmarks.gpu.prices import METERING_S, TRIAL_S, PricedDevice, VirtualClock
from ekc.codegen.generate import compile_schedule
from ekc.devices.simulated.specs import H100
from ekc.ir.schedule.naive import make_naive_schedule
from tests.benchmarks.gpu.test_tune import SMALL
from tests.benchmarks.helpers import ROOT

CHILD = """
import json, mmap, pathlib, struct, subprocess, sys, time
clock, part, out = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
file = open(clock, "r+b")
memory = mmap.mmap(file.fileno(), 16)
out.mkdir(exist_ok=True)
rows = out / "rows.jsonl"
text = rows.read_text() if rows.exists() else ""
done = 0 if FAULT == "twice" else text.count("\\n")
if FAULT == "lost":
    rows.write_text("")
if FAULT == "outlived":
    subprocess.Popen(["sleep", "60"])
for item in range(done, 12):
    time.sleep(0.03)
    seconds, payments = struct.unpack("dd", memory[:])
    memory[:] = struct.pack("dd", seconds + 3.2, payments + 1)
    with rows.open("a") as file:
        file.write(json.dumps({"part": part, "item": str(item), "status": "ok"}) + "\\n")
"""
"""A call with twelve items of one metering each."""


@pytest.mark.parametrize(
    ("fault", "found"), [("", []), ("lost", ["tune: rows were lost"]), ("twice", ["tune: 0 has 2 rows"])]
)
def test_killed_call_goes_on_and_faults_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, found: list[str]
) -> None:
    monkeypatch.setattr(rehearsal, "MOST_PAYMENTS", 6)
    monkeypatch.setattr(rehearsal, "CHILD", (sys.executable, "-c", f"FAULT = {fault!r}{CHILD}"))
    visit = rehearsal.Rehearsal(tmp_path / "out", 1, 0, ())
    played = visit.play("tune", 9.0)
    assert (played["killed"], played["starts"], played["status"]) == (1, 2, 0), visit.faults
    assert [*visit.faults, *visit.list_repeated_rows()][:1] == found
    # A kill hits before or after the row of the metering that it was drawn for.
    assert fault or played["device_s"] == pytest.approx(12 * 3.2, abs=3.3)


def test_process_that_outlives_a_killed_call_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "MOST_PAYMENTS", 6)
    monkeypatch.setattr(rehearsal, "OUTLIVE_S", 0.2)
    monkeypatch.setattr(rehearsal, "CHILD", (sys.executable, "-c", f"FAULT = 'outlived'{CHILD}"))
    visit = rehearsal.Rehearsal(tmp_path / "out", 1, 0, ())
    assert visit.play("tune", 9.0)["killed"] == 1
    (fault,) = visit.faults
    assert fault.endswith("outlived the killed call")
    assert not rehearsal.is_running(int(fault.split()[2]))


def test_call_beyond_its_minutes_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "CHILD", (sys.executable, "-c", f"FAULT = ''{CHILD}"))
    visit = rehearsal.Rehearsal(tmp_path / "out", 0, 0, ())
    visit.play("tune", 0.5)
    assert visit.faults == ["tune: 38 s of 30 s"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_whole_visit_can_be_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> None:
    words = ("--dry-run", "--kills", "3", "--seed", str(seed), "--out", str(tmp_path / "out"))
    assert rehearsal.main(words) == 0, capsys.readouterr().out


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
