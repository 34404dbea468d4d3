"""The kit: a dry run goes through every part, a run goes on where one stopped, no part outlives its time."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import traces, versus
from benchmarks.gpu.__main__ import INTERRUPTED, PARTS, main
from benchmarks.gpu.check import DRAWN, POPULATION
from benchmarks.gpu.folder import FILES, MOST_BYTES, Folder
from benchmarks.gpu.items import (
    CHECKED,
    list_recorded_items,
    list_small_items,
    list_versus_items,
)
from benchmarks.gpu.kit import RESERVE, Budget, Kit, describe_conditions
from benchmarks.gpu.sampling import sample_schedules
from benchmarks.gpu.traces import read_traces
from ekc import devices
from ekc.devices.recording import read_recording
from ekc.devices.recording.reader import pack_line, unpack_members
from ekc.errors import DeviceError, RecordError
from ekc.governor.samples import SensorSamples
from ekc.ir.schedule import Tensorize
from tests.benchmarks.helpers import ROOT
from tests.devices.recording.full_disk import no_room_beyond

KIT = (sys.executable, "-m", "benchmarks.gpu")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one dry run of everything."""
    folder = tmp_path_factory.mktemp("kit") / "out"
    words = ("all", "--dry-run", "--minutes", "40", "--out", str(folder))
    done = subprocess.run(KIT + words, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert "DRY RUN: every figure is simulated. Nothing ran on a GPU." in done.stdout
    for part in PARTS:
        assert f"\n{part}: " in done.stdout
    return folder


def _rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_dry_run_has_rows_of_every_part(out: Path) -> None:
    rows = _rows(out)
    assert rows[0]["part"] == "run"
    assert rows[0]["simulated"] is rows[0]["dry_run"] is True
    assert {r["part"] for r in rows} == {"run", *PARTS}
    absent = {r["part"]: r["reason"] for r in rows[1:] if r["status"] != "ok"}
    assert absent == {
        "pack": "no pack is named: --pack FILE (python -m benchmarks.gpu.packs)",
        "counters": "a100 (simulated) has no counters",
        "library": "a dry run compiles no library for a100 (simulated)",
    }
    assert "(simulated)" in (out / "report.txt").read_text()


@pytest.mark.slow
def test_output_is_few_small_files(out: Path) -> None:
    files = [p for p in out.iterdir() if not p.name.endswith(("-wal", "-shm"))]
    assert {p.name for p in files} <= set(FILES)
    assert len(FILES) <= 6
    assert all(p.stat().st_size < MOST_BYTES for p in files)


@pytest.mark.slow
def test_recording_can_be_replayed(out: Path) -> None:
    recording = read_recording(out / "recording.jsonl.gz")
    assert recording.origin.simulated
    metered = [r for r in recording.rows if r.meterings]
    assert metered
    assert all(r.checked for r in metered)
    assert devices.open(f"recorded:{out / 'recording.jsonl.gz'}").simulated


@pytest.mark.slow
def test_dry_run_has_no_library_rows(out: Path) -> None:
    (row, *_) = [r for r in _rows(out) if r["part"] == "versus"]
    assert set(row["figures"]) == {"ekc", "naive schedule"}  # type: ignore[arg-type]
    assert set(row["absent"]) == {"cuBLAS", "cuDNN", "Triton"}  # type: ignore[arg-type]


@pytest.mark.slow
def test_traces_say_that_they_are_simulated(out: Path) -> None:
    header, traces = read_traces(out / "traces.json.gz")
    assert header["simulated"]
    assert traces
    for trace in traces:
        assert "(simulated)" in trace.name
        assert trace.samples.sampling_hz > 5
        assert len(trace.step_s) > 2


@pytest.mark.slow
def test_report_has_the_sample_rate(out: Path) -> None:
    plain = json.loads(gzip.decompress((out / "traces.json.gz").read_bytes()))["traces"][0]
    at = plain["time_s"]
    assert plain["reached_hz"] == pytest.approx((len(at) - 1) / (at[-1] - at[0]), abs=0.01)
    assert "reached Hz" in (out / "report.txt").read_text()


def test_loops_share_the_time_and_those_left_out_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, recorded_s = [0.0], []

    def record(seconds: float) -> Any:
        recorded_s.append(seconds)
        clock[0] += seconds + traces.BEGIN_S
        return SensorSamples(*np.tile([0.0, 1.0], (5, 1))), np.array([0.0, 1.0])

    monkeypatch.setattr(traces, "_list_jobs", lambda kit: dict.fromkeys("abcdefgh", record))
    monkeypatch.setattr(traces, "wake_gpu", lambda kit: None)
    monkeypatch.setattr(traces.importlib.util, "find_spec", lambda name: object())
    device = SimpleNamespace(simulated=False, label="x")
    kit: Any = SimpleNamespace(folder=Folder(tmp_path, {"device": "x"}), device=device, dry=False)
    traces.run(kit, Budget(110.0, lambda: clock[0]))
    assert recorded_s == pytest.approx([110.0 * (1 - RESERVE) / 4 - traces.BEGIN_S] * 4)
    statuses = {row["item"]: row["status"] for row in kit.folder.list_rows("traces")}
    assert statuses == dict.fromkeys("abcd", "ok") | dict.fromkeys("efgh", "not run")
    traces.run(kit, Budget(540.0, lambda: clock[0]))
    assert recorded_s[4:] == [traces.LONGEST_S] * 4
    assert {row["status"] for row in kit.folder.list_rows("traces")} == {"ok"}


def test_git_ignores_no_output_file(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text((ROOT / ".gitignore").read_text())

    def ignored(*names: str) -> str:
        words = ["git", "check-ignore", *(f"gpu-out/{name}" for name in names)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode <= 1, done.stderr
        return done.stdout

    assert ignored(*FILES) == ""
    assert ignored("tuning.db")


@pytest.mark.slow
def test_second_run_repeats_nothing(out: Path) -> None:
    before = _rows(out)
    assert main(["check", "versus", "tune", "traces", "--dry-run", "--out", str(out)]) == 0
    new = _rows(out)[len(before) :]
    done = {(r["part"], r.get("item")) for r in before}
    assert new[0]["part"] == "run"
    assert not [r for r in new[1:] if (r["part"], r["item"]) in done]


def test_folder_opens_without_its_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = describe_conditions(devices.open("a100"), dry=False, seed=0)
    folder = Folder(tmp_path, facts | {"device": "NVIDIA H200 (cuda:9)", "simulated": False})
    folder.add_row("check", "matmul, float32", "ok", kernels=[], right=0)
    row = dict.fromkeys(("latency_s", "simulated_s", "prior_s"), 1.0)
    row |= {"operator": "mm", "model": "h200 (simulated)"}

    def simulated(kit: Kit, budget: Budget) -> None:
        with pytest.raises(DeviceError, match=r"was opened without NVIDIA H200 \(cuda:9\)"):
            print(kit.device)
        kit.folder.add_row("fidelity", "digest", "ok", **row)

    monkeypatch.setattr(PARTS["fidelity"], "run", simulated)
    recorded = SimpleNamespace(origin=SimpleNamespace(simulated=False))
    monkeypatch.setattr(PARTS["fidelity"], "read_recording", lambda path: recorded)
    assert main(["fidelity", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "fidelity: h200 (simulated) against NVIDIA H200 (cuda:9)" in text
    assert "Opened without the device" in text
    before = _rows(tmp_path)
    assert main(["report", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("NVIDIA H200 (cuda:9), ")
    assert "\ncheck: " in text
    assert "\nfidelity: " in text
    assert _rows(tmp_path) == before, "to tell is no run"


def test_folder_without_a_run_has_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--out", str(tmp_path / "none")]) == 2
    assert "none holds no run: there is no rows.jsonl in it" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_interrupted_recording_is_repeated(out: Path, tmp_path: Path) -> None:
    whole = unpack_members((out / "recording.jsonl.gz").read_bytes()).text.splitlines(keepends=True)
    last = max(n for n, line in enumerate(whole) if json.loads(line).get("event") == "metering")
    digest = json.loads(whole[last])["digest"]
    (tmp_path / "recording.jsonl.gz").write_bytes(b"".join(map(pack_line, whole[:last])))
    assert main(["record", "--dry-run", "--minutes", "20", "--out", str(tmp_path)]) == 0
    found = read_recording(tmp_path / "recording.jsonl.gz")
    assert found.by_digest[digest].meterings
    assert found.by_digest.keys() == read_recording(out / "recording.jsonl.gz").by_digest.keys()


@pytest.mark.slow
def test_folder_refuses_another_device(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--device", "h100", "--out", str(out)]) == 2
    assert "is of a100 (simulated), this is h100 (simulated): name another --out" in capsys.readouterr().err


@pytest.mark.parametrize("fact", ["device", "driver", "clock_regime", "data_policy"])
def test_folder_refuses_other_conditions(fact: str, tmp_path: Path) -> None:
    facts = dict.fromkeys(("device", "driver", "clock_regime", "data_policy"), "a")
    Folder(tmp_path, facts)
    Folder(tmp_path, facts)
    with pytest.raises(RecordError, match="is of a, this is b: name another --out"):
        Folder(tmp_path, facts | {fact: "b"})


def test_kit_without_a_gpu_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not isinstance(devices.open("auto").simulated, bool) or not devices.open("auto").simulated:
        pytest.skip("there is a GPU here")
    assert main(["all", "--out", str(tmp_path)]) == 2
    assert "no device 'cuda:0': no NVIDIA driver here" in capsys.readouterr().err


def test_cut_row_is_dropped(tmp_path: Path) -> None:
    folder = Folder(tmp_path, {"device": "x"})
    folder.add_row("check", "a", "ok")
    file = tmp_path / "rows.jsonl"
    file.write_text(file.read_text() + '{"part": "che')
    again = Folder(tmp_path, {"device": "x"})
    assert again.find_row("check", "a") is not None
    assert len(_rows(tmp_path)) == 3
    file.write_text("{]\n")
    with pytest.raises(RecordError, match="is damaged"):
        Folder(tmp_path, {"device": "x"})


def test_full_disk_leaves_no_half_row(tmp_path: Path) -> None:
    folder = Folder(tmp_path, {"device": "x"})
    folder.add_row("check", "a", "ok")
    size = (tmp_path / "rows.jsonl").stat().st_size
    with no_room_beyond(size + 10), pytest.raises(RecordError, match="cannot be written"):
        folder.add_row("check", "b", "ok")
    folder.add_row("check", "c", "ok")
    again = Folder(tmp_path, {"device": "x"})
    assert [row["item"] for row in again.list_rows("check")] == ["a", "c"]


@pytest.mark.slow
def test_error_in_one_part_keeps_the_others(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("made up")

    monkeypatch.setattr(PARTS["check"], "run", broken)
    assert main(["check", "traces", "--dry-run", "--out", str(out)]) == 1
    printed = capsys.readouterr()
    assert "FAIL: ZeroDivisionError: made up" in printed.out
    assert "\ntraces: " in printed.out
    assert "Traceback" in printed.err


def test_bad_file_keeps_the_other_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recording.jsonl.gz").write_text("no recording")
    assert main(["record", "traces", "--dry-run", "--minutes", "9", "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "FAIL: " in printed.out
    assert "is not a recording of ekc, or is damaged" in printed.out
    assert "compute job on h200" in printed.out


def test_bad_plan_is_printed_once_and_loses_no_item(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text('{"version": 1, "sch')
    assert main(["versus", "--dry-run", "--minutes", "9", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("is no plan") == 1
    assert not [row for row in _rows(tmp_path) if row["part"] == "versus" and row["item"]]


def test_full_disk_is_an_error_after_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def filled(kit: Kit, budget: Budget) -> None:
        kit.folder.add_row("check", "matmul, float32", "ok", kernels=[], right=0)
        with no_room_beyond((tmp_path / "rows.jsonl").stat().st_size):
            kit.folder.add_note("check", "more", "than there is room for")

    monkeypatch.setattr(PARTS["check"], "run", filled)
    (tmp_path / "report.txt").mkdir()
    assert main(["check", "--dry-run", "--out", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert "\nmatmul" in printed.out
    assert "rows.jsonl cannot be written: File too large" in printed.out
    assert "report.txt cannot be written" in printed.err


def test_report_names_a_part_that_was_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(kit: Kit, budget: Budget) -> None:
        budget.cut = True

    monkeypatch.setattr(PARTS["check"], "run", cut)
    assert main(["check", "--dry-run", "--out", str(tmp_path)]) == 0
    assert "cut short: there was no time for the rest" in capsys.readouterr().out


@pytest.mark.slow
def test_ended_run_still_has_a_report(tmp_path: Path) -> None:
    words = ("check", "--dry-run", "--out", str(tmp_path))
    run = subprocess.Popen(KIT + words, cwd=ROOT, stdout=subprocess.PIPE)
    rows = tmp_path / "rows.jsonl"
    while run.poll() is None and not (rows.exists() and '"check"' in rows.read_text()):
        time.sleep(0.05)
    run.terminate()
    run.communicate(timeout=120)
    assert run.returncode == INTERRUPTED
    assert "check: " in (tmp_path / "report.txt").read_text()


def test_part_without_enough_time_is_not_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    for part in PARTS:
        monkeypatch.setattr(PARTS[part], "run", lambda kit, budget, part=part: begun.append(part))
    assert main(["all", "--device", "a100", "--minutes", "1", "--out", str(tmp_path)]) == 0
    assert "versus" not in begun
    assert "tune" not in begun
    assert begun[0] == "check"
    assert "not run: the 1 minutes are used" in capsys.readouterr().out


def test_items_not_run_are_tried_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path, {"device": "x"})
    folder.add_row("versus", "a", "not run", reason="no time")
    assert folder.find_row("versus", "a") is None
    folder.add_row("versus", "a", "ok")
    assert folder.find_row("versus", "a") is not None
    assert [r["status"] for r in folder.list_rows("versus")] == ["ok"]


def test_item_without_library_is_compared_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = list(list_small_items())
    device = SimpleNamespace(simulated=False, clock_regime="free")
    folder = Folder(tmp_path, {"device": "x"})
    folder.add_row("versus", first.name, "ok", figures={"ekc": {}})
    folder.add_row("versus", second.name, "ok", figures={"ekc": {}, "cuBLAS": {}})
    kit: Any = SimpleNamespace(folder=folder, device=device, dry=False, set_clocks=False, target="cuda:0")
    compared: list[str] = []
    monkeypatch.setattr(versus, "list_versus_items", list_small_items)
    monkeypatch.setattr(versus, "_compare", lambda kit, item: compared.append(item.name))
    versus.run(kit, Budget(60.0))
    assert compared == [first.name]


SHORT = [30.0] * 8


@pytest.mark.parametrize(
    ("budget_s", "items", "taken"),
    [
        pytest.param(100.0, [30.0] * 10, [30.0] * 3, id="item that does not fit"),
        # By the longest of all it would have stopped at two.
        pytest.param(
            360.0, [30.0, 120.0, 120.0, *SHORT], [30.0, 120.0, 120.0, 30.0, 30.0], id="short after long"
        ),
        pytest.param(150.0, [30.0, 30.0, 120.0, *SHORT], [30.0] * 4, id="item with a long estimate"),
    ],
)
def test_items_that_fit_are_taken(budget_s: float, items: list[float], taken: list[float]) -> None:
    clock, begun = [0.0], []
    budget = Budget(budget_s, lambda: clock[0])
    for seconds in budget.take_affordable(items, lambda seconds: 90.0 * (seconds > 30.0)):
        begun.append(seconds)
        clock[0] += seconds
    assert begun == taken
    assert budget.cut
    assert clock[0] <= budget_s * (1 - RESERVE)


def test_shared_time_is_for_as_many_as_it_is_enough_for() -> None:
    clock = [0.0]
    budget = Budget(540.0, lambda: clock[0])
    taken = []
    for item, share in budget.share_time("abc", 160.0, 120.0):
        taken.append(item)
        clock[0] += share + 3.0
    assert taken == ["a", "b", "c"], "three seconds more than its share keep no part out"
    assert not budget.cut
    budget = Budget(360.0, lambda: clock[0])
    assert [round(share) for _, share in budget.share_time("abc", 160.0, 0.0)] == [175, 349]
    assert budget.cut


def test_item_lists_have_the_promised_operators() -> None:
    names = [item.row for item in list_versus_items()]
    assert len(names) == len(set(names))
    late = [number for number, item in enumerate(list_versus_items()) if item.triton]
    assert late == [11, 12], "behind the most telling ones, each of which takes a third as long"
    for side in (512, 1024, 2048, 4096, 8192):
        for dtype in ("float32", "tf32", "float16", "bfloat16"):
            assert f"MM {side}^3 {dtype}" in names
    assert names[0] == "MM 4096^3 float32"
    assert {item.kind for item in list_recorded_items()} == {"matmul", "matvec", "conv2d"}


@pytest.mark.parametrize("name", ["matmul", "matmul, both transposed", "conv2d, 64 channels, NHWC"])
def test_samples_have_each_tensor_core_instruction(name: str) -> None:
    h200 = devices.open("h200")
    drawn = sample_schedules(CHECKED[name]("float16"), h200.limits, h200.peaks, 0, POPULATION, 1 + DRAWN)
    instructions = [[s.instruction for s in x.steps if isinstance(s, Tensorize)] for x in drawn]
    assert instructions == [[], ["wgmma.m64nNk16"], ["mma.m16n8k16"], []]
