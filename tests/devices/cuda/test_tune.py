"""`ekc.tune` on scripted GPUs, from the target to the winner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ekc
from ekc import devices
from ekc.cli import main
from ekc.errors import InvalidInput, NothingLegal
from ekc.search.data.cost import MeasurementCost
from ekc.search.database.database import RecordStore
from ekc.search.explain.by_feature import explain_learned
from ekc.search.sketches.naive import make_naive_schedule
from tests.scripted.cuda.faulty_driver import Plan, faulty_hand
from tests.scripted.cuda.forked_worker import Forked
from tests.scripted.cuda.node import ScriptedNode
from tests.scripted.nvml.card import Card

OP = ekc.matmul(16, 16, 16)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cuda-cache"))


def tune(node: ScriptedNode, monkeypatch: pytest.MonkeyPatch, **options: Any) -> ekc.TuningResult:
    monkeypatch.setattr(devices, "open", lambda target: node.open(target, launch_s=5e-3))
    options = {"target": "cuda:0", "trials": 8, "progress": False} | options
    return ekc.tune(OP, **options)


def test_a_run_ends_with_a_kernel_that_was_checked_and_metered_on_the_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = tune(ScriptedNode(), monkeypatch, records=tmp_path / "r.db")
    assert result.device.label == "Scripted A100 (cuda:0)"
    assert not result.device.simulated
    assert result.best.metered
    assert result.best.checked.startswith("executed on Scripted A100 (cuda:0), ")
    assert "compiled PTX executed on the CPU" in result.best.checked
    assert "simulated" not in result.summary()
    with RecordStore(tmp_path / "r.db", create=False) as store:
        timings, meterings = list(store.read_rows(kind="timing")), list(store.read_rows(kind="metering"))
        assert len(timings) > 8
        conditions = [row.payload["conditions"] for row in (*timings, *meterings)]
        (check, *_) = store.read_rows(kind="check")
    for found in conditions:
        assert not found["simulated"]
        assert found["clock_mhz"] == 1410
        assert found["l2"] == "warm"
        assert found["power_cap_w"] == 400.0
        assert found["gpu"] == "00000000-0000-0000-0000-000000000000"
    assert check.payload["executed_by"].startswith("Scripted A100 (cuda:0)")
    # An account by features finds these rows, and says that they are too few.
    with pytest.raises(InvalidInput, match=r"Scripted A100 .* holds [1-9] metered schedules, and 10 are"):
        explain_learned(
            make_naive_schedule(OP), result.best.schedule, devices.open("cuda:0"), tmp_path / "r.db"
        )


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_metering_window_that_cannot_be_is_refused(seconds: float) -> None:
    kernel = ekc.compile(make_naive_schedule(OP)).compiled
    with pytest.raises(InvalidInput, match=f"metering window: {seconds} s; give a positive"):
        ScriptedNode().open(launch_s=5e-3).meter(kernel, seconds=seconds)


def test_trials_are_spread_over_gpus_and_filed_in_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def order(path: Path) -> list[tuple[str, str]]:
        with RecordStore(path, create=False) as store:
            first = [row for row in store.read_rows(kind="timing") if row.key.draw == 0]
        return [(row.key.schedule_digest, row.payload["conditions"]["gpu"][-1]) for row in first]

    files = tmp_path / "two.db", tmp_path / "again.db"
    for file in files:
        result = tune(ScriptedNode(2), monkeypatch, target="cuda:all", records=file, objective="latency")
    assert result.device.label == "Scripted A100 (cuda:0,1)"
    schedules, gpus = zip(*order(files[0]), strict=True)
    # The naive schedule is timed before the search, on the first.
    assert gpus[1:5] == ("0", "1", "0", "1")
    # What is bred later follows what was measured, which is never the same twice.
    assert order(files[1])[:5] == order(files[0])[:5]
    assert len(set(schedules)) == len(schedules)


def test_a_gpu_that_dies_costs_its_own_trials_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of two GPUs the second refuses everything: its rows say so, the others make a winner."""

    def hire(index: int) -> Forked:
        plan = Plan("launch", "error")
        plan.armed.value = index
        return faulty_hand(plan, index, gpus=2, launch_s=5e-3)

    node = ScriptedNode(2)
    monkeypatch.setattr(devices, "open", lambda target: node.open(target, hire))
    result = ekc.tune(OP, target="cuda:all", trials=8, progress=False, objective="latency")
    failed = [t for t in result.trials if t.status != "ok"]
    assert failed
    assert all(t.status.startswith("device: cuda:1: launch: CUDA_ERROR_UNKNOWN") for t in failed)
    assert result.best.status == "ok"


def test_a_gpu_that_cannot_be_metered_can_be_tuned_for_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    split = ScriptedNode(card=Card(name="Scripted A100", mig=True))
    result = tune(split, monkeypatch, objective="latency", trials=4)
    assert result.best.status == "ok"
    assert not result.best.metered
    assert result.summary()
    with pytest.raises(NothingLegal, match="split by MIG"):
        tune(split, monkeypatch, objective="energy", trials=4)


def test_what_timing_took_counts_every_call_of_a_sample() -> None:
    """The meter of the search: a sample of a short kernel is the mean of hundreds of calls."""
    timing = ScriptedNode().open(launch_s=5e-6).time(ekc.compile(make_naive_schedule(OP)).compiled)
    spent = MeasurementCost()
    spent.add_timing(timing, 100.0)
    assert timing.calls > 100
    assert spent.timing_s == pytest.approx(timing.samples * 2e-3, rel=0.2)
    assert spent.joules == pytest.approx(100.0 * spent.timing_s)


def test_the_command_line_takes_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = ScriptedNode()
    monkeypatch.setattr(devices, "open", lambda target: node.open(target, launch_s=5e-3))
    words = ["16", "16", "16", "--target", "cuda:0"]
    assert main(["run", "matmul", *words]) == 0
    said = capsys.readouterr().out
    assert "on the GPU executed on Scripted A100 (cuda:0), 1 of 1 blocks compared" in said
    assert "agrees with the reference" in said
    out = ["--out", str(tmp_path), "--trials", "4", "--quiet", "--json"]
    assert main(["tune", "matmul", *words, "--objective", "latency", *out]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["device"] == {"name": "Scripted A100", "simulated": False} | told["device"]
    assert (tmp_path / "matmul.cu").exists() or told["exported"]
