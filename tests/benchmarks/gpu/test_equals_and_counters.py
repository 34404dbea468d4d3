"""Energy of schedules of equal speed, and hardware counters."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import counters, equals, record
from benchmarks.gpu.contenders import compute_ratio
from benchmarks.gpu.equals_report import EQUALLY_FAST, read_groups
from benchmarks.gpu.folder import RECORDING
from benchmarks.gpu.items import make_matmul
from benchmarks.gpu.kit import Budget, Kit, NotRun
from benchmarks.simulator import own
from ekc import devices
from ekc.devices.recording import read_recording
from ekc.errors import CompileError
from ekc.ir.schedule.naive import make_naive_schedule
from tests.scripted.cuda.node import ScriptedNode

ROUNDS = 4
SMALL = make_matmul(16, 16, 16, "float32")
NCU = f"""#!{sys.executable}
import pickle, sys
words = sys.argv[1:]
assert words[words.index("--clock-control") + 1] == "none"
log, file = words[words.index("--log-file") + 1], words[words.index("benchmarks.gpu.counted_calls") + 1]
with open(log, "w") as out:
    print("==PROF== Connected to process 1", file=out)
    print('"ID","Kernel Name","smsp__inst_executed.sum","lts__t_sectors.sum","Device"', file=out)
    print('"","","inst","sector",""', file=out)
    for work in pickle.load(open(file, "rb")):
        for launch in work.launches[COUNT]:
            print(f'"0","{{launch.name}}","1,234","0","0"', file=out)
"""
"""Writes what Nsight Compute wrote on an H100: its own lines first, then names, units, and a line for each
launch."""


@pytest.fixture(name="kit")
def make_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kit on a scripted GPU with a small recording."""
    node, real = ScriptedNode(), devices.open
    monkeypatch.setattr(
        devices, "open", lambda t="auto": node.open(t, launch_s=1e-3) if t.startswith("cuda") else real(t)
    )
    monkeypatch.setattr(record, "list_recorded_items", lambda: (SMALL,))
    monkeypatch.setattr(equals, "list_plans", lambda dry: [equals.plan_equals(SMALL)])
    monkeypatch.setattr(equals, "ROUNDS", ROUNDS)
    # On a scripted GPU a kernel takes the time of its launch: all are about as fast.
    monkeypatch.setattr(equals, "MEMBERS", 2)
    monkeypatch.setattr(record, "TIMED", 4)
    monkeypatch.setattr(record, "METERED", (0,))
    monkeypatch.setattr(record, "POPULATION", 64)
    kit = Kit.open("cuda:0", tmp_path / "out", dry=False, seed=0, set_clocks=False)
    record.run(kit, Budget(600.0))
    yield kit
    kit.close()


def _install_ncu(folder: Path, monkeypatch: pytest.MonkeyPatch, count: str) -> None:
    program = folder / "ncu"
    program.write_text(NCU.replace("COUNT", count))
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_equals_run_in_rotation_and_go_on_after_a_kill(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the worker of a scripted GPU. A kill in the third slice: no slice is lost, none measured twice,
    and the next call begins with a round of its own."""
    killed, real = [], kit.folder.add_row

    def add_row(part: str, item: str, status: str, **facts: Any) -> Any:
        row = real(part, item, status, **facts)
        if "round" in row and row["round"] == 1 and not killed:
            killed.append(row)
            raise KeyboardInterrupt
        return row

    kit.folder.add_row = add_row  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        equals.run(kit, Budget(600.0))
    equals.run(kit, Budget(600.0))
    (group,) = read_groups(kit.folder)
    slices = [row for row in kit.folder.rows if "round" in row]
    assert len({row["item"] for row in slices}) == len(slices)
    assert sorted(group.rounds) == list(range(ROUNDS))
    assert [len(group.rounds[n]) for n in range(ROUNDS)] == [3, 1, *(3 for _ in range(2, ROUNDS))]
    times = [group.row["short_s"][name] for name in group.kernels]
    assert times == sorted(times)
    assert max(times) <= EQUALLY_FAST * min(times)
    table = equals.make_table(kit)
    assert "MM 16^3 float32, equals: no saving found; more than" in table
    assert "0 of 1 kernels differ from themselves" in table
    before = len(kit.folder.rows)
    equals.run(kit, Budget(600.0))
    assert len(kit.folder.rows) == before
    # A call that fails leaves the group as it was.
    monkeypatch.setattr(equals, "ROUNDS", ROUNDS + 1)
    monkeypatch.setattr(
        kit, "compile_kernel", lambda schedule: (_ for _ in ()).throw(CompileError("no room"))
    )
    equals.run(kit, Budget(600.0))
    assert sorted(read_groups(kit.folder)[0].rounds) == list(range(ROUNDS))
    assert "MM 16^3 float32, equals: not rotated: no room" in equals.make_table(kit)


def test_operator_without_equally_fast_kernels_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equals, "list_plans", lambda dry: [equals.plan_equals(SMALL)])
    monkeypatch.setattr(equals.plan, "list_schedules", lambda *a: [make_naive_schedule(SMALL.op)])
    kit = Kit.open("a100", tmp_path / "out", dry=True, seed=0, set_clocks=False)
    equals.run(kit, Budget(60.0))
    (row,) = kit.folder.list_rows("equals")
    assert row["status"] == "one kernel alone is fast, nothing to compare it with"
    assert row["status"] in equals.make_table(kit)
    # It is tried again when other schedules are known, and not before.
    before = len(kit.folder.rows)
    equals.run(kit, Budget(60.0))
    assert len(kit.folder.rows) == before
    monkeypatch.setattr(equals.plan, "list_schedules", lambda *a: [])
    equals.run(kit, Budget(60.0))
    kit.close()
    assert "no schedule is known" in equals.make_table(kit)


def test_counters_of_every_launch_are_kept(kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install_ncu(tmp_path, monkeypatch, ":")
    counters.run(kit, Budget(600.0))
    rows = kit.folder.list_rows("counters")
    recorded = read_recording(kit.folder.path / RECORDING).rows
    assert {row["item"] for row in rows} == {row.digest for row in recorded if row.timings}
    for row in rows:
        assert row["status"] == "ok"
        assert [launch["smsp__inst_executed.sum"] for launch in row["launches"]] == [1234.0]
        assert "lts__t_sectors.sum" not in row["launches"][0], "counters that are 0 are left out"
    assert "counted" in counters.make_table(kit)


def test_simulated_model_is_compared_with_the_folder(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(record, "TIMED", 12)
    monkeypatch.setattr(record, "METERED", (0, 1, 2, 3, 4))
    _install_ncu(tmp_path, monkeypatch, ":")
    for part in (record, equals, counters):
        part.run(kit, Budget(600.0))
    file = tmp_path / "own.json"
    own.main(["--folder", str(kit.folder.path), "--fit", "--json", str(file)])
    text = capsys.readouterr().out
    assert "a100 (simulated, no residual) beside Scripted A100 (cuda:0)" in text
    result = json.loads(file.read_text())
    halves = [line["n"] for line in result["lines"] if line["operator"] == "all"]
    assert halves[0] == halves[1] + halves[2]
    assert {line["event"] for line in result["counters"]} == {"instructions"}
    energies = {line["energy"]: line for line in result["fit"]}
    assert all(line["least"] <= line["fit"] <= line["most"] for line in energies.values() if "least" in line)


def test_folder_without_recording_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kit = Kit.open("a100", tmp_path / "out", dry=True, seed=0, set_clocks=False)
    kit.close()
    with pytest.raises(SystemExit):
        own.main(["--folder", str(tmp_path / "out")])
    assert "has no recording.jsonl.gz: run `python -m benchmarks.gpu record` there" in capsys.readouterr().err


def test_missing_launches_are_reported(kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install_ncu(tmp_path, monkeypatch, ":0")
    counters.run(kit, Budget(600.0))
    assert all(row["status"].startswith("ncu counted 0 of ") for row in kit.folder.list_rows("counters"))


def test_without_ncu_nothing_is_counted(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NotRun, match=r"^Nsight Compute \(ncu\) is not installed$"):
        counters.run(kit, Budget(600.0))


def test_ratio_needs_more_than_its_scatter() -> None:
    even = [[1.0, 0.99, 1.01]] * 5
    larger = compute_ratio(even, [[v, v * 0.99, v * 1.01] for v in (1.1, 1.2, 1.15, 1.12, 1.18)])
    assert larger.is_significant
    assert larger.ratio == pytest.approx(1.15, abs=0.01)
    scattered = compute_ratio(even, [[v, v * 0.99, v * 1.01] for v in (0.9, 1.1, 1.0, 0.95, 1.06)])
    assert not scattered.is_significant
    assert compute_ratio(even, []) is None
