"""Whole tuning runs: the result, resuming, time budgets, workers, seeds."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ekc
from ekc import devices
from ekc.codegen.compiled import digest_cuda_source
from ekc.codegen.generate import generate
from ekc.devices.device import Metering
from ekc.devices.simulated.device import SimulatedDevice
from ekc.errors import DeviceError, InvalidInput
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.processes.pool import WorkerProcesses
from ekc.search.data.defaults import MEASURING
from ekc.search.open_run import open_space
from ekc.search.tuning_result import TuningResult
from tests.search.helpers import MV, TRIALS, band, rows, tune, winner


def test_time_budget_includes_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_slowly(*asked: Any) -> Any:
        time.sleep(1.0)
        return open_space(*asked)

    monkeypatch.setattr("ekc.search.run.open_space", open_slowly)
    result = tune(time_budget_s=1.0)
    assert result.seconds > 1.0
    assert result.trial_count == 1
    assert result.stopped == "time budget of 1 s used"


INT8 = ekc.matmul(16, 24, 64, dtype="int8", out_dtype="float32")
OPERATORS = ["matvec_run", "matmul_run", ekc.matmul(31, 37, 29, dtype="float16"), INT8, band(48, 40)]


@pytest.mark.parametrize("op", OPERATORS, ids=["matvec", "matmul", "float16", "int8", "band"])
def test_result_is_consistent(op: ekc.Operator | str, request: pytest.FixtureRequest) -> None:
    result = request.getfixturevalue(op)[0] if isinstance(op, str) else tune(op)
    best, fastest = result.best, result.fastest
    assert best.latency_s is not None
    assert fastest.latency_s is not None
    assert best.energy_j is not None
    assert fastest.energy_j is not None
    assert best.latency_s <= fastest.latency_s * 1.05
    assert best.energy_j <= fastest.energy_j
    assert result.baseline.latency_s is not None
    assert result.baseline.latency_s >= fastest.latency_s
    assert best.ok
    assert best.metered
    assert "max error" in best.checked
    assert best.checked.startswith("compiled PTX executed on the CPU (")
    assert "the sanitizer found nothing" in best.checked
    assert result.trial_count == TRIALS == len({t.schedule.digest for t in result.trials})
    assert 0 < result.metered_count <= TRIALS
    assert 0 < result.roofline_share <= 1
    assert result.device.simulated
    assert result.device.label == "a100 (simulated)"
    assert result.stopped == ""
    assert best in (*result.trials, result.baseline)
    assert fastest in (*result.trials, result.baseline)
    front = [(t.latency_s, t.energy_j) for t in result.pareto]
    assert front == sorted(front)
    assert [e for _, e in front] == sorted((e for _, e in front), reverse=True)
    assert "a100 (simulated)" in result.summary()
    assert best.energy_interval_j is not None
    assert best.energy_interval_j.low <= best.energy_j * 1.01 <= best.energy_interval_j.high * 1.02


def test_run_fuses_epilogues() -> None:
    op = ekc.matmul(48, 64, 32).epilogue(lambda c, bias: ekc.relu(c + bias), bias=(64,))
    result = tune(op.epilogue(lambda c, before: ekc.gelu(c) + before, before=(48, 64)), trials=4)
    assert all(len(t.schedule.program.nests) == 1 for t in (*result.trials, result.baseline))
    assert result.best.ok
    assert "the sanitizer found nothing" in result.best.checked


@pytest.fixture(scope="module")
def seed_3() -> TuningResult:
    """A run with seed 3 that compiles in two threads."""
    return tune(seed=3)


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        pytest.param(ThreadPoolExecutor, 1, marks=pytest.mark.exhaustive),
        (ThreadPoolExecutor, 4),
        pytest.param(ProcessPoolExecutor, 2, marks=pytest.mark.exhaustive),
        pytest.param(WorkerProcesses, 2, marks=pytest.mark.slow),
    ],
)
def test_winner_is_the_same_for_any_workers(
    kind: Callable[[int], Executor],
    workers: int,
    seed_3: TuningResult,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path))
    with kind(workers) as executor:
        result = tune(seed=3, executor=executor)
        assert executor.submit(int, "5").result() == 5, "the caller's executor stays open"
    assert winner(result) == winner(seed_3)
    assert [t.to_json() for t in result.trials] == [t.to_json() for t in seed_3.trials]


def test_other_seed_tries_other_schedules(plain_run: TuningResult, seed_3: TuningResult) -> None:
    a, b = ({t.schedule.digest for t in run.trials} for run in (plain_run, seed_3))
    assert a != b


def test_repeated_run_measures_nothing_new(plain_run: TuningResult, matvec_records: Path) -> None:
    filed = rows(matvec_records)
    again = tune(records=matvec_records)
    assert rows(matvec_records) == filed > TRIALS
    assert winner(again) == winner(plain_run)
    assert [t.to_json() for t in again.trials] == [t.to_json() for t in plain_run.trials]
    more = tune(records=matvec_records, trials=TRIALS + 3)
    assert rows(matvec_records) > filed
    assert more.trial_count == TRIALS + 3


def test_time_budget_ends_run() -> None:
    result = tune(trials=100, time_budget_s=0.7)
    assert result.stopped.startswith("time budget of 0.7 s")
    assert 0 < result.trial_count < 100
    assert result.best.metered


@pytest.mark.parametrize("objective", ["latency", "energy"])
def test_shortest_time_budget_tries_one_schedule_and_meters_finalists_if_needed(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows: list[float] = []
    meter = SimulatedDevice.meter

    def counted(self: SimulatedDevice, *arguments: Any, seconds: float = 1.0, **draw: int) -> Metering:
        windows.append(seconds)
        return meter(self, *arguments, seconds=seconds, **draw)

    monkeypatch.setattr(SimulatedDevice, "meter", counted)
    result = tune(objective=objective, time_budget_s=1e-6)
    assert result.trial_count == 1
    assert result.best.ok
    of_finals = windows.count(MEASURING.final_window_s) - 1  # Without the first look at the naive schedule.
    assert of_finals == (0 if objective == "latency" else 2), "one turn of the one tried and the naive one"


def test_objective_selects_best() -> None:
    result = tune(objective="latency")
    assert result.best.schedule == result.fastest.schedule
    result = tune(objective="edp")
    best, fastest = result.best, result.fastest
    assert best.energy_j * best.latency_s <= fastest.energy_j * fastest.latency_s


def test_start_schedules_are_tried_first(seed_3: TuningResult) -> None:
    given = seed_3.best.schedule
    result = tune(seed=0, start=[given, given, make_naive_schedule(MV)])
    assert [t.schedule for t in result.trials[:2]] == [given, make_naive_schedule(MV)]
    assert result.trials[0].structure == "given"
    assert result.trial_count == TRIALS == len({t.schedule.digest for t in result.trials})


def test_bad_operator_or_target_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not an operator"):
        tune("matmul")  # type: ignore[arg-type]
    for target in ("a1000", "cuda:0", "cuda:x"):
        with pytest.raises(DeviceError) as problem:
            tune(target=target)
        assert "\n" not in str(problem.value)


def test_largest_seed_works() -> None:
    assert tune(seed=2**63 - 1, trials=9).best.ok


def test_best_schedule_compiles_and_runs(plain_run: TuningResult) -> None:
    a, x = (np.random.default_rng(0).standard_normal(t.shape).astype(np.float32) for t in MV.inputs)
    np.testing.assert_allclose(plain_run.compile()(a, x), a @ x, rtol=1e-4, atol=1e-4)


def test_equal_kernels_are_tried_once() -> None:
    result = tune(ekc.matvec(64, 64), trials=24)
    texts = {
        digest_cuda_source(generate(t.schedule, devices.open("a100").limits).source) for t in result.trials
    }
    assert len(texts) == len(result.trials) == 24
