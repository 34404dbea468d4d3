"""The probe of a real GPU, on a scripted NVML."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from ekc.errors import ActuatorError
from ekc.governor.live.nvml_probe import NvmlProbe
from ekc.governor.live.sampler import Sampler
from tests.governor.scripted_nvml import ScriptedBoards
from tests.governor.scripted_reads import Gpm, instant_power


def probe(here: ScriptedBoards) -> NvmlProbe:
    return NvmlProbe(here.uuid(), lambda: True, lambda: None)


def scripted(here: ScriptedBoards, **changes: Any) -> None:
    here.file.write_text(json.dumps(json.loads(here.file.read_text()) | changes))


def test_readings_are_in_order_and_in_their_units(here: ScriptedBoards) -> None:
    watching = probe(here)
    before = time.monotonic()
    # A machine with other work may not get round to a second reading at once.
    samples = next(x for x in map(watching.record, (0.5, 2.0, 10.0)) if len(x) >= 2)
    assert (np.diff(samples.time_s) > 0).all()
    assert before <= samples.time_s[0]
    assert samples.time_s[-1] <= time.monotonic()
    assert ((samples.power_w > 50) & (samples.power_w < 400)).all()
    assert set(np.unique(samples.sm_util)) <= {0.0, 95.0}
    assert set(np.unique(samples.memory_util)) <= {0.0, 40.0}
    assert (samples.clock_mhz == 1995).all()
    assert samples.power_limit_w == 280.0
    assert not watching.simulated
    assert 0 < watching.overhead < 1
    assert watching.steps() is None


def test_energy_is_in_joules(here: ScriptedBoards) -> None:
    first = probe(here).energy_j()
    assert 900 < first < 1e5
    assert probe(here).energy_j() > first


def test_power_is_a_mean_of_a_second_where_no_field_is_instantaneous(here: ScriptedBoards) -> None:
    assert probe(here).record(0.05).sensor_s == 1.0


def test_the_instantaneous_field_is_taken_where_there_is_one(
    here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch
) -> None:
    instant_power(monkeypatch, 321.5)
    samples = probe(here).record(0.2)
    assert samples.sensor_s == 0.1
    assert (samples.power_w % 1 == 0.5).all()
    assert (np.diff(samples.power_w) == 1.0).all()
    assert samples.power_w[0] > 321


@pytest.mark.parametrize(("name", "arch", "window"), [("NVIDIA A100-SXM4", 7, 0.1), ("Quadro RTX", 6, 0.1)])
def test_older_cards_read_power_at_once(here: ScriptedBoards, name: str, arch: int, window: float) -> None:
    gpus = json.loads(here.file.read_text())["gpus"]
    gpus[0] |= {"name": name, "arch": arch}
    scripted(here, gpus=gpus)
    assert probe(here).record(0.05).sensor_s == window


def test_a_job_that_ends_ends_the_recording(here: ScriptedBoards) -> None:
    ends = time.monotonic() + 0.3
    watching = NvmlProbe(here.uuid(), lambda: time.monotonic() < ends, lambda: 7.0)
    assert len(watching.record(60.0)) >= 1
    assert watching.steps() == 7.0
    assert time.monotonic() < ends + 30


def test_a_sensor_that_fails_leaves_gaps_only(here: ScriptedBoards) -> None:
    watching = probe(here)
    code = sys.modules["pynvml"].NVML_ERROR_UNKNOWN  # type: ignore[attr-defined]
    scripted(here, fail={"nvmlDeviceGetUtilizationRates": code})
    samples = watching.record(0.3)
    assert np.isnan(samples.sm_util).all()
    assert np.isfinite(samples.power_w).all()


def test_a_card_that_tells_no_power_is_named(here: ScriptedBoards) -> None:
    watching = probe(here)
    code = sys.modules["pynvml"].NVML_ERROR_NOT_SUPPORTED  # type: ignore[attr-defined]
    scripted(here, fail={"nvmlDeviceGetPowerUsage": code, "nvmlDeviceGetTotalEnergyConsumption": code})
    with pytest.raises(ActuatorError, match="tells no power: nvmlDeviceGetPowerUsage: Not Supported"):
        watching.record(0.2)
    with pytest.raises(ActuatorError, match="counts no energy"):
        watching.energy_j()


def test_a_lost_gpu_ends_the_recording_with_one_line(here: ScriptedBoards) -> None:
    watching = probe(here)
    scripted(here, lost=True)
    with pytest.raises(ActuatorError, match=r"GPU is lost; reset it") as caught:
        watching.record(60.0)
    assert "\n" not in str(caught.value)


def test_a_driver_that_hangs_is_named(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    hang = threading.Event()
    watching = probe(here)
    monkeypatch.setattr(watching._sensors, "read", hang.wait)
    with pytest.raises(ActuatorError, match="has not answered for 1 s"):
        watching.record(1.0)
    hang.set()


def test_no_such_gpu(here: ScriptedBoards) -> None:
    with pytest.raises(ActuatorError, match="GPU-none"):
        NvmlProbe("GPU-none", lambda: True, lambda: None)


VALUES = {
    "NVML_GPM_METRIC_SM_UTIL": 81.0,
    "NVML_GPM_METRIC_DRAM_BW_UTIL": 33.0,
    "NVML_GPM_METRIC_ANY_TENSOR_UTIL": 40.0,
    "NVML_GPM_METRIC_FP64_UTIL": 1.0,
    "NVML_GPM_METRIC_FP32_UTIL": 9.0,
    "NVML_GPM_METRIC_FP16_UTIL": 2.5,
}


def test_counters_of_hopper(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    gpm = Gpm(monkeypatch, VALUES)
    told = probe(here).counters(0.05)
    assert told == {"sm_active": 81.0, "dram": 33.0, "tensor": 40.0, "fma": 12.5}
    assert len(set(gpm.taken)) == 2
    assert not gpm.alive


def test_no_counters_where_none_are_there_or_permitted(
    here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert probe(here).counters(0.05) is None
    gpm = Gpm(monkeypatch, {name: v for name, v in VALUES.items() if "DRAM" not in name})
    assert probe(here).counters(0.05) is None
    gpm.refused = True
    assert probe(here).counters(0.05) is None
    assert not gpm.alive


def test_readings_that_cost_much_are_made_less_often() -> None:
    def work() -> int:
        return sum(range(200_000))

    with Sampler(work, 0.0) as sampler:
        time.sleep(0.6)
    assert sampler.core_s > 0
    assert sampler._spacing_s() * len(sampler.rows) == pytest.approx(sampler.core_s / 0.005)


def test_a_driver_that_hangs_is_left_behind() -> None:
    hang = threading.Event()
    with Sampler(hang.wait, 0.01) as sampler:
        pass
    assert sampler.rows == []
    hang.set()
