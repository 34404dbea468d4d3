"""`ekc.tune` on scripted GPUs, from the target to the winner."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import ekc
from ekc import devices
from ekc.cli import main
from ekc.devices.cuda.device import CudaDevice
from ekc.errors import InvalidInput, NothingLegal
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.search.data.result import MeasurementCost
from ekc.search.database.database import RecordStore
from ekc.search.explain.by_feature import explain_learned
from tests.scripted.cuda.faulty_driver import Plan, faulty_hand
from tests.scripted.cuda.forked_worker import Forked
from tests.scripted.cuda.node import ScriptedNode
from tests.scripted.nvml.card import Card

OP = ekc.matmul(16, 16, 16)


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cuda-cache"))


UUID = "00000000-0000-0000-0000-00000000000{}"


@dataclass(frozen=True)
class Run:
    """A tuning run on two GPUs, of which the second refuses every launch, with its record file."""

    result: ekc.TuningResult
    records: Path
    device: CudaDevice


def test_run_on_two_gpus_of_which_one_refuses_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run for five groups of assertions, each in a function below."""

    def start_worker(index: int) -> Forked:
        plan = Plan("launch", "error")
        plan.armed.value = index
        return faulty_hand(plan, index, gpus=2, launch_s=5e-3)

    device = ScriptedNode(2).open("cuda:all", start_worker)
    monkeypatch.setattr(devices, "open", lambda target: device)
    result = ekc.tune(OP, target="cuda:all", trials=8, records=tmp_path / "r.db", progress=False)
    run = Run(result, tmp_path / "r.db", device)
    check_winner_was_checked_and_metered_on_the_gpu(run)
    check_records_have_the_conditions_of_the_gpu(run)
    check_trials_are_spread_over_gpus_and_filed_in_order(run)
    check_gpu_that_refuses_launches_costs_its_own_trials_alone(run)
    check_account_by_features_finds_too_few_records(run)


def check_winner_was_checked_and_metered_on_the_gpu(run: Run) -> None:
    assert run.result.device.label == "Scripted A100 (cuda:0,1)"
    assert not run.result.device.simulated
    assert run.result.best.status == "ok"
    assert run.result.best.metered
    assert run.result.best.checked.startswith("executed on Scripted A100 (cuda:0,1), ")
    assert "compiled PTX executed on the CPU" in run.result.best.checked
    assert "simulated" not in run.result.summary()


def check_records_have_the_conditions_of_the_gpu(run: Run) -> None:
    with RecordStore(run.records, create=False) as store:
        timings, meterings = list(store.read_rows(kind="timing")), list(store.read_rows(kind="metering"))
        (check, *_) = store.read_rows(kind="check")
    assert len(timings) > 8
    measured = [row.payload for row in (*timings, *meterings) if row.status == "ok"]
    assert len(measured) > 4
    for payload in measured:
        conditions = payload["conditions"]
        assert not conditions["simulated"]
        assert conditions["clock_mhz"] == 1410
        assert conditions["l2"] == "warm"
        assert conditions["power_cap_w"] == 400.0
        assert conditions["gpu"] == UUID.format(0)
    assert check.payload["executed_by"].startswith("Scripted A100 (cuda:0,1)")


def check_trials_are_spread_over_gpus_and_filed_in_order(run: Run) -> None:
    with RecordStore(run.records, create=False) as store:
        rows = [row for row in store.read_rows() if row.kind in ("timing", "failure")]
    first = [row for row in rows if row.key.draw == 0]
    # The naive schedule is timed before the search, on the first GPU.
    assert [row.status == "ok" for row in first[:5]] == [True, True, False, True, False]
    assert len({row.key.schedule_digest for row in first}) == len(first)


def check_gpu_that_refuses_launches_costs_its_own_trials_alone(run: Run) -> None:
    failed = [t for t in run.result.trials if t.status != "ok"]
    assert failed
    assert all(t.status.startswith("device: cuda:1: launch: CUDA_ERROR_UNKNOWN") for t in failed)


def check_account_by_features_finds_too_few_records(run: Run) -> None:
    with pytest.raises(InvalidInput, match=r"Scripted A100 .* holds [1-9] metered schedules, and 10 are"):
        explain_learned(make_naive_schedule(OP), run.result.best.schedule, run.device, run.records)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_metering_window_must_be_positive(seconds: float) -> None:
    kernel = ekc.compile(make_naive_schedule(OP)).compiled
    with pytest.raises(InvalidInput, match=f"metering window: {seconds} s; give a positive"):
        ScriptedNode().open(launch_s=5e-3).meter(kernel, seconds=seconds)


def test_gpu_that_cannot_be_metered_is_tuned_for_latency_only(monkeypatch: pytest.MonkeyPatch) -> None:
    split = ScriptedNode(card=Card(name="Scripted A100", mig=True))
    monkeypatch.setattr(devices, "open", lambda target: split.open(target, launch_s=5e-3))
    result = ekc.tune(OP, target="cuda:0", trials=1, objective="latency", progress=False)
    assert result.best.status == "ok"
    assert not result.best.metered
    assert result.summary()
    with pytest.raises(NothingLegal, match="split by MIG"):
        ekc.tune(OP, target="cuda:0", trials=1, objective="energy", progress=False)


def test_cost_of_timing_counts_every_call_of_a_sample() -> None:
    """The cost account of the search: a sample of a short kernel is the mean of hundreds of calls."""
    timing = ScriptedNode().open(launch_s=5e-6).time(ekc.compile(make_naive_schedule(OP)).compiled)
    spent = MeasurementCost()
    spent.add_timing(timing, 100.0)
    assert timing.calls > 100
    assert spent.timing_s == pytest.approx(timing.samples * 2e-3, rel=0.2)
    assert spent.joules == pytest.approx(100.0 * spent.timing_s)


def test_command_line_takes_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = ScriptedNode()
    monkeypatch.setattr(devices, "open", lambda target: node.open(target, launch_s=5e-3))
    words = ["16", "16", "16", "--target", "cuda:0"]
    assert main(["run", "matmul", *words]) == 0
    printed = capsys.readouterr().out
    assert "on the GPU executed on Scripted A100 (cuda:0), 1 of 1 blocks compared" in printed
    assert "agrees with the reference" in printed
    out = ["--out", str(tmp_path), "--trials", "1", "--quiet", "--json"]
    assert main(["tune", "matmul", *words, "--objective", "latency", *out]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["device"] == {"name": "Scripted A100", "simulated": False} | report["device"]
    assert (tmp_path / "matmul.cu").exists() or report["exported"]
