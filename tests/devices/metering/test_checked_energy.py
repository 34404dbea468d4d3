"""The check of a board's energy counter against its power, by meter and governor."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pynvml
import pytest

from ekc.devices.device import POWER_READINGS
from ekc.devices.metering.checked_energy import CheckedEnergy, compute_max_power_w
from ekc.devices.metering.meter import MeteringWindow, meter_kernel
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import DeviceError
from ekc.governor.live.probe import BoardEnergy
from tests.devices import samples
from tests.scripted.nvml.card import Card
from tests.scripted.nvml.library import ScriptedNvml
from tests.scripted.nvml.metering import board_of, scripted

MEAN_W = 240.0
FAULT_S = 33.0


def draw_power(at_s: np.ndarray) -> np.ndarray:
    """A square wave of 300 W and 100 W with a mean of `MEAN_W`."""
    return np.where(at_s % 2.0 < 1.4, 300.0, 100.0)


Fault = Callable[[float], float | None]
FAULTS: dict[str, tuple[Fault, str]] = {
    "backwards": (lambda j: j - 5000.0, "ran backwards"),
    "reset": (lambda j: j - 500.0 - MEAN_W * FAULT_S, "ran backwards"),
    "wraps at 32 bits": (lambda j: j - 2**32 / 1000.0, "ran backwards"),
    "in another unit": (lambda j: j / 1000.0, "ran backwards"),
    "in a smaller unit": (lambda j: j * 1000.0, "more than the board can draw"),
    "jumps": (lambda j: j + 3000.0, "more than the board can draw"),
    "does not move": (lambda j: 500.0 + MEAN_W * FAULT_S, "did not move"),
    "is gone": (lambda j: None, "did not answer"),
    "is no number": (lambda j: math.nan, "gives no number"),
    "counts half": (
        lambda j: 500.0 + MEAN_W * (FAULT_S + (j - 500.0 - MEAN_W * FAULT_S) / MEAN_W / 2),
        "says",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_wrong_counter_is_replaced_by_the_power_readings(name: str) -> None:
    """A governor once compared settings by it: candidates of -716 W, savings of -64,293 J."""
    fault, words = FAULTS[name]
    now, lines = 0.0, list[str]()

    def count() -> float | None:
        true_j = 500.0 + MEAN_W * now
        return true_j if now <= FAULT_S else fault(true_j)

    energy = BoardEnergy(count, "GPU 0", lines.append, lambda: compute_max_power_w(400.0))
    joules = [energy.compute_joules(0.0)]
    for step in range(400):
        now = 0.2 * (step + 1)
        at = np.arange(now - 0.2, now, 0.05) + 0.01
        energy.add_readings(at, draw_power(at))
        joules.append(energy.compute_joules(now))
    watts = np.diff(joules[::50]) / 10.0
    assert (np.diff(joules) >= 0).all()
    assert watts == pytest.approx(MEAN_W, rel=0.2)
    assert watts[5:] == pytest.approx(MEAN_W, rel=0.03)
    (line,) = lines
    assert words in line
    assert line.endswith("; its power readings are added up instead")


@pytest.mark.parametrize("seed", range(4))
def test_right_counter_is_used(seed: int) -> None:
    """Ticks of a second, power that is a mean over a second, pauses without readings, failed calls."""
    rng, lines = np.random.default_rng(seed), list[str]()
    fine_s = np.arange(0.0, 400.0, 0.01)
    fine_w = np.where((fine_s / rng.uniform(0.5, 20.0)) % 1 < rng.uniform(0.2, 0.8), 310.0, 60.0)
    counted = np.concatenate([[0.0], np.cumsum(fine_w) * 0.01])
    mean_w = np.convolve(fine_w, np.ones(100) / 100)[: len(fine_w)]

    def count() -> float | None:
        return None if rng.random() < 0.1 else float(counted[100 * int(now)])

    energy, now = BoardEnergy(count, "GPU 0", lines.append, lambda: compute_max_power_w(350.0)), 1.0
    while now < 350.0:
        seconds = rng.choice([0.2, 2.0, 20.0])
        at = np.arange(now, now + seconds, 0.1)
        watts = np.where(rng.random(len(at)) < 0.05, np.nan, mean_w[(100 * at).astype(int)])
        now += seconds
        energy.add_readings(at, watts)
        now += rng.choice([0.0, 0.0, 0.0, 7.0])
        energy.compute_joules(now)
    assert lines == []


def test_power_under_a_cap_that_was_raised_counts() -> None:
    caps, lines = [300.0], list[str]()
    energy = BoardEnergy(lambda: 500.0 * now, "GPU 0", lines.append, lambda: compute_max_power_w(caps[-1]))
    now = 0.0
    begin_j = energy.compute_joules(now)
    caps.append(500.0)
    for now in (10.0, 20.0, 30.0):
        energy.add_readings(np.arange(now - 10.0, now, 0.1), np.full(100, 500.0))
    assert energy.compute_joules(now) - begin_j == pytest.approx(15_000.0, rel=0.01)
    assert lines == []


def test_power_of_no_board_is_left_out() -> None:
    energy = CheckedEnergy(5.0, compute_max_power_w(300.0))
    for at_s, watts in enumerate([200.0, -50.0, 1e9, math.nan, math.inf, 0.0, 200.0]):
        energy.add_power(float(at_s), watts)
    assert energy.compute_joules(6.0) == pytest.approx(1200.0)


@pytest.mark.parametrize("cap_w", [None, math.nan, 0.0, -1.0, 1e9])
def test_unknown_cap_bounds_power_as_well(cap_w: float | None) -> None:
    assert 1500 < compute_max_power_w(cap_w) < 1e4


def meter_with(library_change: Callable[[ScriptedNvml, Callable[[], float]], None]) -> MeteringWindow:
    gpu, library = scripted(Card(instantaneous=True))
    library_change(library, gpu.clock.now)
    return meter_kernel(board_of(gpu, library), samples.copy(1024), 1e-4, 3.0)


COUNTERS: dict[str, Callable[[int], int]] = {
    "wraps": lambda mj: mj - 2**32,
    "jumps": lambda mj: mj + 10**7,
    "is in another unit": lambda mj: mj // 1000,
    "counts half": lambda mj: mj // 2 + 10**9,
}


@pytest.mark.parametrize("name", COUNTERS)
@pytest.mark.parametrize("after_s", [0.0, 1002.5, 1003.5])
def test_meter_does_not_believe_a_wrong_counter(name: str, after_s: float) -> None:
    """Wrong from some time on; one that is always off by a constant is right, as only differences count."""

    def change(library: ScriptedNvml, now: Callable[[], float]) -> None:
        count = library.nvmlDeviceGetTotalEnergyConsumption
        library.nvmlDeviceGetTotalEnergyConsumption = (  # type: ignore[method-assign]
            lambda handle: count(handle) if now() < after_s else COUNTERS[name](count(handle))
        )

    window = meter_with(change)
    assert window.power_w == pytest.approx(260.0, rel=0.02)
    if after_s or name in ("counts half", "is in another unit"):
        assert window.estimator == POWER_READINGS


@pytest.mark.parametrize("milliwatts", [0, 10**12, 2**32 - 1])
def test_meter_does_not_believe_a_power_that_no_board_draws(milliwatts: int) -> None:
    def change(library: ScriptedNvml, now: Callable[[], float]) -> None:
        library.fails["nvmlDeviceGetFieldValues"] = pynvml.NVML_ERROR_NOT_SUPPORTED
        library.nvmlDeviceGetPowerUsage = lambda handle: milliwatts  # type: ignore[method-assign]

    window = meter_with(change)
    assert window.power_w == pytest.approx(260.0, rel=0.02)
    assert "the board reports no power now; energy is from its counter alone" in window.notes

    def change_both(library: ScriptedNvml, now: Callable[[], float]) -> None:
        change(library, now)
        count = library.nvmlDeviceGetTotalEnergyConsumption
        library.nvmlDeviceGetTotalEnergyConsumption = (  # type: ignore[method-assign]
            lambda handle: 100 * count(handle)
        )

    with pytest.raises(DeviceError):
        meter_with(change_both)


def test_card_whose_instantaneous_power_is_zero_is_read_by_the_mean() -> None:
    gpu, library = scripted(Card())
    gpu.instant_w = lambda: 0.0  # type: ignore[method-assign]
    sensors = GpuSensors("0", library)
    assert not sensors.is_instantaneous
    assert sensors.power_w() == pytest.approx(70.0, rel=0.02)


def test_raised_cap_raises_the_bound() -> None:
    gpu, library = scripted(Card(cap_mw=100_000))
    sensors = GpuSensors("0", library)
    gpu.instant_w = lambda: 200.0  # type: ignore[method-assign]
    assert math.isnan(sensors.power_w())
    assert "its power sensor says 200 W" in sensors.power_problem
    library.nvmlDeviceGetEnforcedPowerLimit = lambda handle: 180_000  # type: ignore[method-assign]
    assert sensors.power_w() == 200.0
