"""The probe of a real GPU, on a scripted NVML."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pytest

from ekc.errors import ActuatorError
from ekc.governor.job_meter import JobMeter
from ekc.governor.live import probe as probes
from ekc.governor.live.probe import BoardEnergy, NvmlProbe, SensorSampler
from ekc.governor.model_file import COUNTERS
from ekc.governor.progress_rate import ProgressSource
from ekc.governor.protocols import CountersMissing, NullActuator, OfferedSettings
from tests.scripted.nvml.boards import ScriptedBoards
from tests.scripted.nvml.extra_reads import ScriptedGpm, script_instant_power


def make_probe(here: ScriptedBoards) -> NvmlProbe:
    return NvmlProbe(here.get_uuid(), lambda: True, lambda: None)


def test_readings_are_in_order_and_in_their_units(here: ScriptedBoards) -> None:
    probe = make_probe(here)
    before = time.monotonic()
    # On a busy machine a second reading may be late.
    samples = next(x for x in map(probe.record, (0.5, 2.0, 10.0)) if len(x) >= 2)
    assert (np.diff(samples.time_s) > 0).all()
    assert before <= samples.time_s[0]
    assert samples.time_s[-1] <= time.monotonic()
    assert ((samples.power_w > 50) & (samples.power_w < 400)).all()
    assert set(np.unique(samples.sm_util)) <= {0.0, 95.0}
    assert set(np.unique(samples.memory_util)) <= {0.0, 40.0}
    assert (samples.clock_mhz == 1995).all()
    assert samples.power_limit_w == 280.0
    assert not probe.simulated
    assert probe.read_step_count() is None


def test_energy_is_in_joules(here: ScriptedBoards) -> None:
    first = make_probe(here).read_energy_j()
    assert 900 < first < 1e5
    assert make_probe(here).read_energy_j() > first


@pytest.mark.parametrize("counter", [None, 12_345_678])
def test_energy_without_a_counter_is_integrated_power(
    here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch, counter: int | None
) -> None:
    """A counter that had stopped was once used: 0 W under all limits."""
    monkeypatch.setattr(probes, "STALL_S", 0.5)
    events: list[str] = []
    probe = NvmlProbe(here.get_uuid(), lambda: True, lambda: None, events.append)
    monkeypatch.setattr(probe._sensors, "counter_mj", lambda: counter)
    monkeypatch.setattr(probe._sensors, "power_w", lambda: 200.0)
    probe.record(0.2)
    begin, joules = probe.now(), probe.read_energy_j()
    for _ in range(4):
        probe.record(0.3)
    watts = (probe.read_energy_j() - joules) / (probe.now() - begin)
    assert watts == pytest.approx(200.0, rel=0.03)
    (line,) = events
    assert line.startswith("GPU 0 (Scripted GPU) ")
    assert ("counts no energy" if counter is None else "has an energy counter that did not move") in line
    assert line.endswith("; its power readings are added up instead")


@pytest.mark.parametrize("stops_s", [0.0, 33.3, 1e9])
def test_energy_continues_where_a_counter_stops(stops_s: float) -> None:
    events: list[str] = []
    now = 0.0

    def power(at: np.ndarray) -> np.ndarray:
        return np.where(at % 2.0 < 1.4, 300.0, 100.0)

    def counted() -> float:
        return 500.0 + 240.0 * min(now, stops_s)

    energy = BoardEnergy(counted, "GPU 0", events.append)
    for begin in (0.0, 20.0, 40.0, 60.0):
        joules = energy.compute_joules(begin)
        for step in range(100):
            now = begin + 0.2 * (step + 1)
            at = np.arange(now - 0.2, now, 0.05) + 0.01
            energy.add_readings(at, power(at))
        assert (energy.compute_joules(now) - joules) / 20.0 == pytest.approx(240.0, rel=0.03)
    assert len(events) == (stops_s < 100)


def test_power_without_an_instantaneous_field_is_a_mean(here: ScriptedBoards) -> None:
    assert make_probe(here).record(0.05).sensor_s == 1.0


def test_power_uses_the_instantaneous_field(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    script_instant_power(monkeypatch, 321.5)
    samples = make_probe(here).record(0.2)
    assert samples.sensor_s == 0.1
    assert (samples.power_w % 1 == 0.5).all()
    assert (np.diff(samples.power_w) == 1.0).all()
    assert samples.power_w[0] > 321


@pytest.mark.parametrize(("name", "arch"), [("NVIDIA A100-SXM4", 7), ("Quadro RTX", 6)])
def test_power_of_older_cards_is_instantaneous(here: ScriptedBoards, name: str, arch: int) -> None:
    here.update_board(0, name=name, arch=arch)
    assert make_probe(here).record(0.05).sensor_s == 0.1


def test_recording_ends_with_the_job(here: ScriptedBoards) -> None:
    ends = time.monotonic() + 0.3
    probe = NvmlProbe(here.get_uuid(), lambda: time.monotonic() < ends, lambda: 7.0)
    assert len(probe.record(60.0)) >= 1
    assert probe.read_step_count() == 7.0
    assert time.monotonic() < ends + 30


def test_failed_sensor_leaves_gaps(here: ScriptedBoards) -> None:
    probe = make_probe(here)
    code = sys.modules["pynvml"].NVML_ERROR_UNKNOWN
    here.update_script(fail={"nvmlDeviceGetUtilizationRates": code})
    samples = probe.record(0.3)
    assert np.isnan(samples.sm_util).all()
    assert np.isfinite(samples.power_w).all()


def test_card_without_power_readings_is_named(here: ScriptedBoards) -> None:
    probe = make_probe(here)
    code = sys.modules["pynvml"].NVML_ERROR_NOT_SUPPORTED
    here.update_script(fail={"nvmlDeviceGetPowerUsage": code, "nvmlDeviceGetTotalEnergyConsumption": code})
    with pytest.raises(ActuatorError, match="gives no power reading: nvmlDeviceGetPowerUsage: Not Supported"):
        probe.record(0.2)


def test_lost_gpu_ends_the_recording_with_one_line(here: ScriptedBoards) -> None:
    probe = make_probe(here)
    here.update_script(lost=True)
    with pytest.raises(ActuatorError, match=r"GPU is lost; reset it") as caught:
        probe.record(60.0)
    assert "\n" not in str(caught.value)


def test_hanging_driver_is_named(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    hang = threading.Event()
    probe = make_probe(here)
    monkeypatch.setattr(probe, "_read_sensors", hang.wait)
    with pytest.raises(ActuatorError, match="has not answered for 1 s"):
        probe.record(1.0)
    hang.set()


def test_unknown_gpu_is_refused(here: ScriptedBoards) -> None:
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


def test_counters_come_from_gpm(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    gpm = ScriptedGpm(monkeypatch, VALUES)
    counters = make_probe(here).read_counters(0.05)
    assert counters == {"sm_active": 81.0, "dram": 33.0, "tensor": 40.0, "fma": 12.5}
    assert tuple(counters) == COUNTERS
    assert len(set(gpm.sampled_ids)) == 2
    assert not gpm.allocated_ids


def test_counters_that_are_missing_or_not_permitted_are_told(
    here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CountersMissing, match="Hopper and later"):
        make_probe(here).read_counters(0.05)
    gpm = ScriptedGpm(monkeypatch, {name: v for name, v in VALUES.items() if "DRAM" not in name})
    with pytest.raises(CountersMissing, match="NVML_GPM_METRIC_DRAM_BW_UTIL"):
        make_probe(here).read_counters(0.05)
    gpm.is_refused = True
    with pytest.raises(CountersMissing, match="Permission"):
        make_probe(here).read_counters(0.05)
    assert not gpm.allocated_ids


def test_expensive_readings_are_made_less_often() -> None:
    def work() -> int:
        return sum(range(200_000))

    with SensorSampler(work, 0.0) as sampler:
        time.sleep(0.6)
    assert sampler.core_s > 0
    assert sampler._compute_spacing_s() * len(sampler.rows) == pytest.approx(sampler.core_s / 0.005)


def test_short_recordings_cost_no_more_than_long_ones(
    here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each recording once began with a reading at once: 2.6 % of a core where hooks count steps."""
    probe = make_probe(here)
    spent: list[float] = []

    def read() -> tuple[float, float, float, float]:
        began = time.thread_time()
        reading = _burn_cpu(0.005)
        spent.append(time.thread_time() - began)
        return reading

    monkeypatch.setattr(probe, "_read_sensors", read)
    probe.record(0.1)
    before = sum(spent)
    began = time.monotonic()
    while time.monotonic() - began < 3.0:
        probe.record(0.2)
    assert 0 < sum(spent) - before < 0.006 * (time.monotonic() - began) + 0.005


def _burn_cpu(seconds: float) -> tuple[float, float, float, float]:
    """A reading that takes so many processor seconds."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    return 200.0, 90.0, 40.0, 1500.0


def test_hanging_driver_is_named_where_steps_are_counted(
    here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recordings of 0.2 s were once too short to notice the hang, and each left a thread behind."""
    hang = threading.Event()
    probe = NvmlProbe(here.get_uuid(), lambda: True, lambda: 7.0)
    monkeypatch.setattr(probe, "_read_sensors", hang.wait)
    meter = JobMeter(probe, NullActuator(OfferedSettings()), lambda event: None)
    threads, began = threading.active_count(), time.monotonic()
    with pytest.raises(ActuatorError, match="has not answered for 1 s"):
        meter._record_stretch(ProgressSource("steps", 1.0), 30.0)
    assert time.monotonic() - began < 3.0
    assert threading.active_count() <= threads + 1
    hang.set()


def test_hanging_reading_is_left_behind() -> None:
    hang = threading.Event()
    with SensorSampler(hang.wait, 0.01) as sampler:
        pass
    assert sampler.rows == []
    hang.set()
