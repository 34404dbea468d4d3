"""Observers of a run: readings beside latency and energy, filed, shown and merged; refusals."""

from __future__ import annotations

import csv
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ekc
from ekc.devices.device import Measurement, Metering, Timing
from ekc.errors import DeviceError, InvalidInput
from ekc.search.database.listing import format_csv
from ekc.search.database.merge import merge_records
from ekc.tables import format_rounded
from tests.search.helpers import MV, tune


class Order(ekc.Observer):
    """Counts its calls, and reads the kind of measurement."""

    name, interval_s = "order_count", 0.001

    def __init__(self) -> None:
        self.calls: list[str] = []

    def before(self, kernel: Any) -> None:
        self.calls = ["before"]

    def during(self) -> None:
        self.calls.append("during")

    def after(self, kernel: Any, measured: Measurement) -> float:
        assert kernel.resources
        assert isinstance(measured, (Timing, Metering))
        assert self.calls[0] == "before"
        assert set(self.calls[1:]) == {"during"}
        return len(self.calls)


class Temperature(ekc.Observer):
    name = "board_temperature_c"

    def after(self, kernel: Any, measured: Measurement) -> float:
        return measured.conditions.temperature_c


def test_readings_are_in_trials_tables_and_files(tmp_path: Path) -> None:
    file = tmp_path / "own.db"
    result = tune(observers=[Order(), Temperature()], records=file)
    assert result.best.readings["board_temperature_c"] > 0
    assert all({"order_count", "board_temperature_c"} == set(t.readings) for t in result.trials if t.ok)
    celsius = format_rounded(result.best.readings["board_temperature_c"], 4)
    assert f"board_temperature_c {celsius} (naive " in result.summary()
    table = result.to_dataframe()
    assert (table["board_temperature_c"].dropna() > 0).all()
    assert table["order_count"].notna().any()
    merged = tmp_path / "merged.db"
    merge_records([file], merged)
    for path in (file, merged):
        lines = list(csv.DictReader(format_csv(path).splitlines()))
        measured = [x for x in lines if x["kind"] in ("timing", "metering")]
        assert measured
        assert all(float(x["board_temperature_c"]) > 0 for x in measured)
        assert all(float(x["board_temperature_c"]) == float(x["temperature_c"]) for x in measured)


def test_figures_are_those_of_a_run_without_observers() -> None:
    with_one, without = tune(observers=[Temperature()]), tune()
    assert [(t.digest, t.latency_s, t.energy_j) for t in with_one.trials] == [
        (t.digest, t.latency_s, t.energy_j) for t in without.trials
    ]
    assert without.best.readings == {}
    assert "board_temperature_c" not in without.to_dataframe()


def test_stored_figures_have_the_readings_of_their_time(tmp_path: Path) -> None:
    file = tmp_path / "own.db"
    tune(records=file)
    assert tune(records=file, observers=[Temperature()]).best.readings == {}


def test_reading_that_is_no_figure_is_left_out() -> None:
    class Sometimes(ekc.Observer):
        name, count = "sensor_w", 0

        def after(self, kernel: Any, measured: Measurement) -> float:
            self.count += 1
            return np.float32(1.5) if self.count == 1 else (math.nan, math.inf)[self.count % 2]

    result = tune(observers=[Sometimes()], clocks="search")
    found = [t.readings for t in (result.baseline, *result.trials) if t.readings]
    assert found == [{"sensor_w": 1.5}]


def test_an_exception_of_an_observer_reaches_the_caller(tmp_path: Path) -> None:
    class Broken(Temperature):
        def during(self) -> None:
            raise OSError("the sensor is gone")

        def after(self, kernel: Any, measured: Measurement) -> float:
            time.sleep(0.01)
            return 1.0

    class Text(Temperature):
        def after(self, kernel: Any, measured: Measurement) -> Any:
            return "warm"

    class Gone(Temperature):
        def after(self, kernel: Any, measured: Measurement) -> Any:
            raise DeviceError("NVML has no such sensor")

    with pytest.raises(RuntimeError, match="observer board_temperature_c: NVML has no such sensor"):
        tune(observers=[Gone()], records=tmp_path / "a.db")
    with pytest.raises(OSError, match="the sensor is gone"):
        tune(observers=[Broken()], records=tmp_path / "a.db")
    with pytest.raises(
        TypeError, match="observer board_temperature_c: its reading is 'warm'; return a number"
    ):
        tune(observers=[Text()], records=tmp_path / "a.db")
    assert tune(records=tmp_path / "a.db").best.ok


@pytest.mark.parametrize(
    ("observers", "words"),
    [
        ("temperature", "observers: 'temperature' is not a list; write observers=[MySensor()]"),
        ([Temperature], "observers: Temperature is a class; write observers=[Temperature()]"),
        ([print], "is no ekc.Observer; derive its class from ekc.Observer"),
        ([type("A", (Temperature,), {"name": 5})()], "A.name is 5; use lower-case letters"),
        (
            [type("A", (Temperature,), {"interval_s": -1})()],
            "has interval_s = -1; give a number of seconds above 0",
        ),
        (
            [Temperature(), Temperature()],
            "there is already a column board_temperature_c; choose another name",
        ),
        ([type("A", (Temperature,), {"name": "latency_s"})()], "there is already a column latency_s"),
        (
            [type("A", (Temperature,), {"name": "My Sensor"})()],
            "A.name is 'My Sensor'; use lower-case letters",
        ),
    ],
)
def test_observers_that_are_refused(observers: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        ekc.tune(MV, target="a100", trials=4, observers=observers, progress=False)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
