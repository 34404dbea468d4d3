"""The forecast of a run: rounds, seconds of compiling and of metering."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ekc import devices
from ekc.search import forecast as forecasts
from ekc.search.database.database import RecordStore
from ekc.search.forecast import RunForecast, forecast_run
from ekc.search.loop.generations import compute_round_size
from ekc.search.loop.measure import Measurer
from ekc.search.space.space import Space
from ekc.search.tuning_result import TuningResult
from tests.search.helpers import MV, TRIALS, make_options, tune, winner


def forecast_matvec(trials: int, objective: str = "energy", **changes: Any) -> RunForecast:
    device, options = devices.open("a100"), make_options(trials, objective, **changes)
    return forecast_run(Space(MV, device.limits), Measurer(device, RecordStore(None)), options)


def test_forecast_counts_rounds_and_windows() -> None:
    forecast = forecast_matvec(64)
    done = 0
    for number in range(1, forecast.rounds + 1):
        done += compute_round_size(number, done, 64)
    assert done == forecast.trials == 64
    assert 0 < forecast.compile_s < forecast.seconds
    least, most = forecast.metering_s
    assert 0 < least < most < 64 * 2.5 + 19 * 6.5 + 1
    text = str(forecast)
    assert text.startswith("64 trials in ")
    assert "of virtual time (a100 (simulated))" in text
    assert str(replace(forecast, may_stop=True)).startswith("at most 64 trials")
    assert "allowed" not in text
    assert "on file" not in text
    assert str(replace(forecast, on_file=12)).endswith("; 12 timings on file are not made again")
    assert "about 90 s here, of which 30 s are allowed; " in str(replace(forecast, seconds=90, budget_s=30))
    assert "allowed" not in str(replace(forecast, seconds=90, budget_s=100))


@pytest.mark.parametrize(
    ("trials", "seed", "clocks"),
    [
        (4, 0, "fixed"),
        (9, 1, "search"),
        *(pytest.param(9, seed, "fixed", marks=pytest.mark.slow) for seed in (0, 1, 2)),
        *(
            pytest.param(trials, seed, "search", marks=pytest.mark.slow)
            for trials, seed in ((9, 0), (9, 2), (4, 0))
        ),
    ],
)
def test_metering_takes_no_longer_than_forecast(trials: int, seed: int, clocks: str) -> None:
    least, most = forecast_matvec(trials, search_clocks=clocks == "search", seed=seed).metering_s
    took = tune(trials=trials, seed=seed, clocks=clocks).spent.metering_s
    assert took <= most
    assert took > least - 3 * 3 * 6.5, "fewer finalists only"


def test_forecast_ignores_slow_first_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    took = iter([(0.1, 20.0), (0.1, 0.2), (0.1, 0.2), (0.1, 0.2)])
    monkeypatch.setattr(forecasts, "_time_probe", lambda schedule, device: next(took))
    seconds = forecast_matvec(100_000, "latency").seconds
    assert seconds < 100_000 * 2.0, "breeding included; 5 s a trial by their mean"


def test_forecast_is_printed_before_progress(
    plain_run: TuningResult, capsys: pytest.CaptureFixture[str]
) -> None:
    tune(trials=1)
    assert capsys.readouterr() == ("", "")
    result = tune(progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.index(f"{TRIALS} trials in ") < err.index(f"{TRIALS}/{TRIALS}")
    assert winner(result) == winner(plain_run), "looking ahead leaves the random stream alone"
