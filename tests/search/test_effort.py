"""Effort: how many trials, what is told beforehand, and when the next round would not pay."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ekc
from ekc import devices
from ekc.devices.device import Metering
from ekc.devices.simulated.device import SimulatedDevice
from ekc.errors import DeviceError, InvalidInput
from ekc.search import forecast as forecasts
from ekc.search import tune as tuner
from ekc.search.data.options import EFFORTS, Effort, TuneOptions
from ekc.search.database.database import RecordStore
from ekc.search.forecast import forecast_run
from ekc.search.loop.generations import compute_round_size
from ekc.search.loop.measure import Measurer
from ekc.search.space.space import Space
from tests.search.runs import MV, TRIALS, rows, tune, winner


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets "quick" mean 40 trials for a kernel that is called so often."""
    return lambda calls: monkeypatch.setitem(EFFORTS, "quick", Effort(40, calls))


def test_efforts_grow() -> None:
    sizes = [(e.trials, e.expected_calls) for e in EFFORTS.values()]
    assert list(EFFORTS) == ["quick", "standard", "full"]
    assert sizes == sorted(sizes)


def test_a_number_of_trials_is_used_to_the_last() -> None:
    result = tune()
    assert result.trial_count == TRIALS
    assert result.stopped == ""


def test_an_effort_and_a_number_of_trials_contradict_each_other() -> None:
    with pytest.raises(InvalidInput, match=r"^effort and trials: give one"):
        tune(effort="quick")


def test_a_kernel_that_is_hardly_called_is_not_searched_long(cheap: Callable[[float], None]) -> None:
    cheap(1.0)
    short = tune(trials=None, effort="quick")
    assert short.stopped.startswith("another round would not pay: ")
    assert short.trial_count < 20
    assert short.best.metered
    assert "another round would not pay" in " ".join(short.summary().split())
    cheap(1e15)
    long = tune(trials=None, effort="quick")
    assert long.stopped == ""
    assert long.trial_count == 40
    assert [t.schedule for t in long.trials[: short.trial_count]] == [t.schedule for t in short.trials]


def test_the_rule_stops_in_seconds_where_latency_is_sought(cheap: Callable[[float], None]) -> None:
    cheap(1.0)
    assert " s and are expected to save " in tune(trials=None, effort="quick", objective="latency").stopped


def test_a_stopped_run_stops_there_again_for_any_workers_resumed_or_not(
    cheap: Callable[[float], None], tmp_path: Path
) -> None:
    cheap(1e6)
    whole = tune(trials=None, effort="quick", records=tmp_path / "r.db")
    assert 8 < whole.trial_count < 40
    filed = rows(tmp_path / "r.db")
    for workers in (1, 2, 4):
        with ThreadPoolExecutor(workers) as pool:
            fresh = tune(trials=None, effort="quick", executor=pool)
            again = tune(trials=None, effort="quick", executor=pool, records=tmp_path / "r.db")
        for other in (fresh, again):
            assert winner(other) == winner(whole)
            assert other.stopped == whole.stopped
            assert [t.to_json() for t in other.trials] == [t.to_json() for t in whole.trials]
            assert other.spent == whole.spent
    assert rows(tmp_path / "r.db") == filed


def test_a_forecast_counts_rounds_and_windows() -> None:
    device = devices.open("a100")
    wish = TuneOptions(64, "energy", 0.05, False, 0, None)
    told = forecast_run(Space(MV, device.limits), Measurer(device, RecordStore(None)), wish)
    done = 0
    for number in range(1, told.rounds + 1):
        done += compute_round_size(number, done, 64)
    assert done == told.trials == 64
    assert 0 < told.compile_s < told.seconds
    least, most = told.metering_s
    assert 0 < least < most < 64 * 2.5 + 19 * 6.5 + 1
    text = str(told)
    assert text.startswith("64 trials in ")
    assert "of virtual time (a100 (simulated))" in text
    assert str(replace(told, may_stop=True)).startswith("at most 64 trials")
    assert "allowed" not in text
    assert "on file" not in text
    assert str(replace(told, on_file=12)).endswith("; 12 timings on file are not made again")
    assert "about 90 s here, of which 30 s are allowed; " in str(replace(told, seconds=90, budget_s=30))
    assert "allowed" not in str(replace(told, seconds=90, budget_s=100))


@pytest.mark.parametrize("clocks", ["fixed", "search"])
@pytest.mark.parametrize(("trials", "seed"), [(4, 0), (9, 0), (9, 1), (9, 2)])
def test_the_meter_takes_no_longer_than_was_told(clocks: str, trials: int, seed: int) -> None:
    device = devices.open("a100")
    wish = TuneOptions(trials, "energy", 0.05, clocks == "search", seed, None)
    least, most = forecast_run(Space(MV, device.limits), Measurer(device, RecordStore(None)), wish).metering_s
    took = tune(trials=trials, seed=seed, clocks=clocks).spent.metering_s
    assert took <= most
    assert took > least - 3 * 3 * 6.5, "fewer finalists only"


def test_what_a_gpu_needs_to_start_is_not_counted_for_every_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([(0.1, 20.0), (0.1, 0.2), (0.1, 0.2), (0.1, 0.2)])
    monkeypatch.setattr(forecasts, "_time_probe", lambda schedule, device: next(took))
    device = devices.open("a100")
    wish = TuneOptions(100_000, "latency", 0.05, False, 0, None)
    told = forecast_run(Space(MV, device.limits), Measurer(device, RecordStore(None)), wish)
    assert told.seconds < 100_000 * 2.0, "breeding included; 5 s a trial by their mean"


def test_the_forecast_is_told_on_stderr_before_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    quiet = tune()
    assert capsys.readouterr() == ("", "")
    told = tune(progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.index(f"{TRIALS} trials in ") < err.index(f"{TRIALS}/{TRIALS}")
    assert winner(told) == winner(quiet), "looking ahead leaves the random stream alone"


def test_a_time_budget_counts_from_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*asked: object) -> str:
        time.sleep(1.0)
        return ""

    monkeypatch.setattr(tuner, "forecast_run", slow)
    result = tune(progress=True, time_budget_s=1.0)
    assert result.seconds > 1.0
    assert result.trial_count == 1
    assert result.stopped == "time budget of 1 s used"


@pytest.mark.parametrize("bad", ["quik", "", 3])
def test_a_bad_effort_is_one_clear_line(bad: object) -> None:
    with pytest.raises(
        InvalidInput, match=r"^effort: no .*; choices are quick, standard, full; nearest is"
    ):
        ekc.tune(MV, effort=bad, progress=False)  # type: ignore[arg-type]


def test_a_device_that_fails_often_does_not_upset_the_rule(
    cheap: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(10_000))
    meter = SimulatedDevice.meter

    def failing(self: SimulatedDevice, *given: Any, **named: Any) -> Metering:
        if next(calls) % 3 == 1:
            raise DeviceError("the counter is busy")
        return meter(self, *given, **named)

    monkeypatch.setattr(SimulatedDevice, "meter_kernel", failing)
    cheap(1e6)
    result = tune(trials=None, effort="quick")
    assert result.best.metered
    assert any(t.status == "device: the counter is busy" for t in result.trials)
