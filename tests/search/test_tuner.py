"""Whole tuning runs, small ones: what they promise, and what they survive."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ekc
from ekc import devices
from ekc.codegen.generate import generate
from ekc.devices.device import Metering
from ekc.devices.digest import digest_cuda_source
from ekc.devices.simulated.device import SimulatedDevice
from ekc.errors import DeviceError, InvalidInput
from ekc.processes.pool import WorkerProcesses
from ekc.search.data.defaults import MEASURING
from ekc.search.data.result import compute_roofline_bound, get_arithmetic_type
from ekc.search.sketches.naive import make_naive_schedule
from tests.search.runs import MV, TRIALS, rows, tune, winner
from tests.search.spaces import band

INT8 = ekc.matmul(32, 48, 64, dtype="int8", out_dtype="float32")


@pytest.mark.parametrize(
    "op",
    [MV, ekc.matmul(64, 64, 64), ekc.matmul(31, 37, 29, dtype="float16"), INT8, band(48, 40)],
    ids=lambda op: f"{op.name} {op.inputs[0].dtype}",
)
def test_a_run_keeps_its_promises(op: ekc.Operator) -> None:
    result = tune(op)
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


def test_a_run_fuses_what_is_behind_a_sum() -> None:
    op = ekc.matmul(48, 64, 32).epilogue(lambda c, bias: ekc.relu(c + bias), bias=(64,))
    result = tune(op.epilogue(lambda c, before: ekc.gelu(c) + before, before=(48, 64)))
    assert all(len(t.schedule.program.nests) == 1 for t in (*result.trials, result.baseline))
    assert result.best.ok
    assert "the sanitizer found nothing" in result.best.checked


@pytest.mark.parametrize(
    ("types", "bound"),
    [
        ({}, "float32"),
        ({"dtype": "tf32"}, "tf32"),
        ({"dtype": "bfloat16", "out_dtype": "float32"}, "bfloat16"),
        ({"dtype": "int8"}, "int8"),
        ({"dtype": "int8", "acc_dtype": "float32"}, "float32"),
    ],
)
def test_the_peak_of_a_roofline_goes_by_inputs_and_accumulator(types: dict[str, str], bound: str) -> None:
    assert get_arithmetic_type(ekc.matmul(8, 8, 8, **types)) == bound


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (ekc.matmul(256, 256, 256), "arithmetic: 17.6 TFLOP/s of float32 (NVIDIA A100 "),
        (ekc.matmul(4096, 4096, 4096, dtype="float16"), "arithmetic: 282 TFLOP/s of float16 (NVIDIA A100 "),
        (ekc.matmul(4096, 4096, 4096, dtype="int8"), "arithmetic: 564 TOP/s of int8 (NVIDIA A100 "),
        (ekc.matvec(256, 256), "compulsory memory traffic: 1,555 GB/s (NVIDIA A100 "),
    ],
)
def test_a_roof_names_the_ceiling_and_who_says_so(op: ekc.Operator, words: str) -> None:
    peaks = ekc.devices.open("a100").peaks
    assert str(compute_roofline_bound(op, peaks)).startswith(words)
    assert str(compute_roofline_bound(op, replace(peaks, source=""))) == words.partition(" (")[0]
    arithmetic, traffic = op.flops / peaks.flops_by_type[get_arithmetic_type(op)], op.min_bytes / 1555e9
    assert compute_roofline_bound(op, peaks).least_s == max(arithmetic, traffic)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ThreadPoolExecutor(1),
        lambda: ThreadPoolExecutor(2),
        lambda: ThreadPoolExecutor(4),
        lambda: ProcessPoolExecutor(2),
        lambda: WorkerProcesses(2),
    ],
    ids=["1 thread", "2 threads", "4 threads", "2 processes", "2 of our own"],
)
def test_the_same_seed_has_the_same_winner_for_any_workers(
    make: Callable[[], Executor], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path))
    with make() as executor:
        result = tune(seed=3, executor=executor)
        assert executor.submit(int, "5").result() == 5, "the caller's executor stays open"
    expected = tune(seed=3)
    assert winner(result) == winner(expected)
    assert [t.to_json() for t in result.trials] == [t.to_json() for t in expected.trials]


def test_another_seed_tries_other_schedules() -> None:
    a, b = ({t.schedule.digest for t in tune(seed=seed).trials} for seed in (0, 1))
    assert a != b


def test_a_run_again_on_the_same_file_measures_nothing_new(tmp_path: Path) -> None:
    file = tmp_path / "r.db"
    first = tune(records=file)
    filed = rows(file)
    again = tune(records=file)
    assert rows(file) == filed > TRIALS
    assert winner(again) == winner(first) == winner(tune())
    assert [t.to_json() for t in again.trials] == [t.to_json() for t in first.trials]
    more = tune(records=file, trials=TRIALS + 3)
    assert rows(file) > filed
    assert more.trial_count == TRIALS + 3


def test_best_knows_what_a_run_found_also_after_a_search_over_clocks(tmp_path: Path) -> None:
    file = tmp_path / "r.db"
    result = tune(records=file, clocks="search")
    known = ekc.best(MV, records=file, target="a100")
    assert known.schedule == result.best.schedule
    assert known.energy_j == pytest.approx(result.best.energy_j)
    assert known.latency_s == pytest.approx(result.best.latency_s)
    with pytest.raises(InvalidInput, match="no metered schedule"):
        ekc.best(MV, records=file, target="h100")


def test_a_search_over_clocks_is_a_second_line() -> None:
    result, fixed = tune(clocks="search"), tune()
    assert winner(result) == winner(fixed)
    assert fixed.clock_front == ()
    clocks = [t.clock_mhz for t in result.clock_front]
    assert len(clocks) >= 4
    assert clocks == sorted(clocks)
    assert clocks[0] < clocks[-1]
    assert all(t.schedule == result.best.schedule and t.metered for t in result.clock_front)
    assert result.clock_front[0].latency_s > result.clock_front[-1].latency_s


def test_a_time_budget_ends_the_run_with_the_best_so_far() -> None:
    result = tune(trials=100_000, time_budget_s=0.7)
    assert result.stopped.startswith("time budget of 0.7 s")
    assert 0 < result.trial_count < 100_000
    assert result.best.metered


def test_however_short_the_time_one_schedule_is_tried() -> None:
    result = tune(time_budget_s=1e-6)
    assert result.trial_count == 1
    assert result.best.ok


@pytest.mark.parametrize("objective", ["latency", "energy"])
def test_where_time_is_up_finalists_are_metered_for_an_objective_that_asks_for_it(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows: list[float] = []
    meter = SimulatedDevice.meter

    def counted(self: SimulatedDevice, *arguments: Any, seconds: float = 1.0, **draw: int) -> Metering:
        windows.append(seconds)
        return meter(self, *arguments, seconds=seconds, **draw)

    monkeypatch.setattr(SimulatedDevice, "meter_kernel", counted)
    result = tune(objective=objective, time_budget_s=1e-6)
    assert result.best.ok
    of_finals = windows.count(MEASURING.final_window_s) - 1  # Without the first look at the naive schedule.
    assert of_finals == (0 if objective == "latency" else 2), "one turn of the one tried and the naive one"


@pytest.mark.parametrize("objective", ["latency", "edp"])
def test_other_objectives(objective: str) -> None:
    result = tune(objective=objective)
    if objective == "latency":
        assert result.best.schedule == result.fastest.schedule
    else:
        best, fastest = result.best, result.fastest
        assert best.energy_j * best.latency_s <= fastest.energy_j * fastest.latency_s


def test_start_is_tried_first() -> None:
    given = tune(seed=11).best.schedule
    result = tune(seed=0, start=[given, given, make_naive_schedule(MV)])
    assert [t.schedule for t in result.trials[:2]] == [given, make_naive_schedule(MV)]
    assert result.trials[0].structure == "given"
    assert result.trial_count == TRIALS == len({t.schedule.digest for t in result.trials})


BAD: list[dict[str, Any]] = [
    {"trials": 0},
    {"trials": 2.5},
    {"trials": True},
    {"trials": "many"},
    {"trials": 10**9},
    {"seed": -1},
    {"seed": 2**63},
    {"seed": 0.5},
    {"objective": "speed"},
    {"objective": 7},
    {"max_slowdown": -0.1},
    {"max_slowdown": float("nan")},
    {"max_slowdown": "5%"},
    {"max_slowdown": None},
    {"clocks": "free"},
    {"time_budget_s": 0},
    {"time_budget_s": float("nan")},
    {"time_budget_s": "1m"},
    {"start": [ekc.Schedule(ekc.matvec(8, 8))]},
    {"start": ["split"]},
    {"start": make_naive_schedule(MV)},
]


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_a_bad_argument_is_one_clear_line(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as problem:
        tune(**bad)
    text = str(problem.value)
    assert text.startswith(next(iter(bad)))
    assert "\n" not in text
    assert len(text) < 200


def test_other_bad_arguments() -> None:
    with pytest.raises(InvalidInput, match="not an operator"):
        tune("matmul")  # type: ignore[arg-type]
    for target in ("a1000", "cuda:0", "cuda:x"):
        with pytest.raises(DeviceError) as problem:
            tune(target=target)
        assert "\n" not in str(problem.value)


def test_the_largest_seed_works() -> None:
    assert tune(seed=2**63 - 1, trials=9).best.ok


def test_the_best_schedule_runs_and_compiles() -> None:
    result = tune(ekc.matvec(96, 64))
    kernel = result.compile()
    a, x = (np.random.default_rng(0).standard_normal(t.shape).astype(np.float32) for t in result.op.inputs)
    np.testing.assert_allclose(kernel(a, x), a @ x, rtol=1e-4, atol=1e-4)


def test_no_kernel_is_tried_twice_under_another_schedule() -> None:
    result = tune(ekc.matvec(64, 64), trials=48)
    texts = {
        digest_cuda_source(generate(t.schedule, devices.open("a100").limits).source) for t in result.trials
    }
    assert len(texts) == len(result.trials) == 48


@pytest.mark.parametrize("slowdown", [-0.5, float("nan"), "fast", 11])
def test_best_refuses_a_slowdown_that_is_none(slowdown: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"max_slowdown: .* is outside 0 to 10"):
        ekc.best(MV, records=tmp_path / "r.db", max_slowdown=slowdown)
