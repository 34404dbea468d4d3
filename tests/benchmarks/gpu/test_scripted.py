"""The kit on a real device whose driver and NVML are scripted: what a machine with a GPU would run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ekc
from benchmarks.gpu import check, fidelity, items, plan, record, tune, versus
from benchmarks.gpu.__main__ import main
from ekc import devices
from ekc.devices.recording import read_recording
from tests.scripted.cuda.node import ScriptedNode

OP = ekc.matmul(16, 16, 16)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one run over small operators."""
    node, real = ScriptedNode(), devices.open
    small = items.make_matmul(16, 16, 16, "float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EKC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cuda-cache"))
        patch.setattr(
            devices, "open", lambda t="auto": node.open(t, launch_s=5e-3) if t.startswith("cuda") else real(t)
        )
        patch.setattr(check, "CHECKED", {"matmul": lambda t: ekc.matmul(16, 16, 16, dtype=t)})
        patch.setattr(check, "DTYPES", ("float32", "int8"))
        patch.setattr(check, "DRAWN", 1)
        patch.setattr(versus, "list_versus_items", lambda: iter([small]))
        patch.setattr(versus, "TRIED", 2)
        patch.setattr(plan, "POPULATION", 256)
        patch.setattr(record, "list_recorded_items", lambda: (small,))
        patch.setattr(record, "TIMED", 6)
        patch.setattr(record, "POPULATION", 256)
        patch.setattr(tune, "list_recorded_items", lambda: (small,))
        patch.setattr(tune, "SEEDS", (0,))
        patch.setattr(tune, "TRIALS", 4)
        folder = tmp_path_factory.mktemp("scripted") / "out"
        words = ["check", "versus", "record", "fidelity", "tune", "traces", "--minutes", "60"]
        assert main([*words, "--out", str(folder)]) == 0
    return folder


def _rows(out: Path, part: str) -> list[dict[str, Any]]:
    lines = (out / "rows.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["part"] == part]


@pytest.mark.slow
def test_only_the_model_is_called_simulated(out: Path) -> None:
    (run,) = _rows(out, "run")
    assert run["device"] == "Scripted A100 (cuda:0)"
    assert not run["simulated"]
    report = (out / "report.txt").read_text()
    lines = [line for line in report.splitlines() if "simulated" in line]
    assert lines == ["fidelity: a100 (simulated) against Scripted A100 (cuda:0)"]


@pytest.mark.slow
def test_kernels_are_executed_on_the_device(out: Path) -> None:
    rows = _rows(out, "check")
    assert [row["item"] for row in rows] == ["matmul, float32", "matmul, int8"]
    for row in rows:
        assert row["status"] == "ok"
        assert len(row["kernels"]) == 2
        assert all(k["verdict"].startswith("executed on Scripted A100 (cuda:0)") for k in row["kernels"])


@pytest.mark.slow
def test_ours_is_measured_and_missing_rivals_have_a_reason(out: Path) -> None:
    (row,) = _rows(out, "versus")
    assert row["status"] == "ok"
    own = row["figures"]["ekc"]
    assert len(own["latency_s"]) == versus.TURNS
    assert len(own["energy_j"]) == versus.WINDOWS
    assert own["clock_mhz"] == 1410
    assert set(row["absent"]) == {"cuBLAS"}


@pytest.mark.slow
def test_recording_names_the_device(out: Path) -> None:
    found = read_recording(out / "recording.jsonl.gz")
    assert not found.origin.simulated
    assert found.origin.description.startswith("Scripted A100 (cuda:0), recorded 20")
    metered = [row for row in found.rows if row.meterings]
    assert len(metered) == 3
    assert all(len(row.find_timing().samples_s) == row.find_timing().samples for row in found.rows)
    assert all(row.checked.startswith("executed on Scripted A100") for row in metered)
    result = ekc.tune(OP, target=f"recorded:{out / 'recording.jsonl.gz'}", progress=False)
    assert not result.device.simulated
    assert "simulated" not in result.summary()
    assert result.best.checked.startswith("executed on Scripted A100")


@pytest.mark.slow
def test_both_winners_are_measured_in_turn(out: Path) -> None:
    *searches, row = _rows(out, "tune")
    assert [one["item"].rsplit(", ")[-1] for one in searches] == ["latency", "energy"]
    assert {one["status"] for one in (*searches, row)} == {"ok"}
    assert {name: len(taken) for name, taken in row["slices"].items()} == dict.fromkeys(
        tune.OBJECTIVES, tune.ROUNDS
    )
    assert fidelity.find_model("NVIDIA GeForce RTX 4090") is not None
    assert fidelity.find_model("Tesla K80") is None
