"""The meter on scripted GPUs, through the sensors, with a power that is known exactly."""

import math

import numpy as np
import pynvml
import pytest

from ekc.devices.device import ENERGY_COUNTER, POWER_CAP, POWER_READINGS, UNREPORTED
from ekc.devices.metering.meter import meter_kernel
from ekc.errors import DeviceError
from tests.devices import samples
from tests.scripted.nvml.card import Card, any_card
from tests.scripted.nvml.metering import board_of, metered, scripted

DRAWS = 500


@pytest.mark.slow
def test_three_seconds_give_the_true_energy_within_a_percent() -> None:
    random = np.random.default_rng(20)
    draws = [metered(any_card(random), 3.0, seed) for seed in range(DRAWS)]
    assert max(abs(draw.error) for draw in draws) < 0.01
    assert abs(np.mean([draw.error for draw in draws])) < 0.001
    assert 0.90 <= np.mean([draw.held for draw in draws]) <= 0.98
    assert all(draw.window.estimator == ENERGY_COUNTER for draw in draws)


@pytest.mark.slow
@pytest.mark.parametrize(
    "card",
    [
        pytest.param(Card(), marks=pytest.mark.exhaustive),
        pytest.param(Card(tick_s=0.02, noise=0.01), marks=pytest.mark.exhaustive),
        Card(share=0.25, swing_w=60.0, noise=0.01, call_s=7e-4),
        pytest.param(Card(warming_w=40.0, warming_s=6.0), marks=pytest.mark.exhaustive),
        pytest.param(Card(late_s=0.01), marks=pytest.mark.exhaustive),
        pytest.param(Card(counts=False), marks=pytest.mark.exhaustive),
        Card(counts=False, instantaneous=False),
    ],
)
def test_interval_is_honest_on_each_kind_of_card(card: Card) -> None:
    draws = [metered(card, 2.0, seed) for seed in range(150)]
    # 150 draws of 95 % lie between these with 99.9 %.
    assert 0.88 <= np.mean([draw.held for draw in draws]) <= 0.995
    assert max(abs(draw.error) for draw in draws) < 0.013
    estimator = ENERGY_COUNTER if card.counts else POWER_READINGS
    assert {draw.window.estimator for draw in draws} == {estimator}


def test_energy_of_one_call_is_power_times_its_time() -> None:
    found = metered(Card(call_s=0.25e-3))
    assert found.window.call_s == pytest.approx(0.25e-3)
    assert found.window.seconds == pytest.approx(3.0, abs=0.11)
    assert found.window.idle_power_w == pytest.approx(70.0, rel=0.01)
    assert found.window.sampled_power_w == pytest.approx(found.window.counter_power_w, rel=0.005)
    assert found.window.notes == ()


def test_conditions_are_on_the_window() -> None:
    window = metered(Card(reasons=0x1 | 0x4 | 0x40)).window
    assert window.throttle == ("hardware thermal slowdown", POWER_CAP)
    assert (window.temperature_c, window.clock_mhz, window.power_cap_w) == (51.0, 1410.0, 400.0)
    assert metered(Card(cap_mw=None)).window.power_cap_w is None


def test_driver_with_the_old_function_name_reports_throttling() -> None:
    fails = {"nvmlDeviceGetCurrentClocksEventReasons": pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
    window = metered(Card(reasons=0x4), 1.0, fails=fails).window
    assert (window.throttle, window.notes) == ((POWER_CAP,), ())


def test_driver_without_throttle_reasons_is_unreported() -> None:
    names = (f"nvmlDeviceGetCurrentClocks{name}Reasons" for name in ("Event", "Throttle"))
    fails = dict.fromkeys(names, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    window = metered(Card(reasons=0x4), 1.0, fails=fails).window
    assert window.throttle == (UNREPORTED,)
    assert window.notes == ("the driver does not report whether something throttles the clock",)


def test_slow_kernel_is_called_at_least_five_times() -> None:
    assert metered(Card(call_s=0.9, warming_w=5.0), seconds=1.0).window.seconds >= 4.5


def test_readings_replace_a_missing_counter() -> None:
    window = metered(Card(counts=False)).window
    assert window.estimator == POWER_READINGS
    assert math.isnan(window.counter_power_w)
    assert window.notes == ("the board counts no energy; energy is from readings of power",)


def test_averaged_readings_take_a_longer_window_and_no_memory_of_idling() -> None:
    found = metered(Card(counts=False, instantaneous=False), seconds=1.0)
    assert found.window.seconds >= 6.0
    assert found.error == pytest.approx(0.0, abs=0.005)


@pytest.mark.parametrize("after_s", [-5.0, 0.5, 1.5, 2.5])
def test_stalled_counter_costs_a_second_and_no_figure(after_s: float) -> None:
    found = metered(Card(stalls=(after_s, math.inf)))
    assert found.window.estimator == POWER_READINGS
    assert "did not move for 1.0 s" in found.window.notes[0]
    assert found.error == pytest.approx(0.0, abs=0.005)


def test_short_stall_that_catches_up_does_no_harm() -> None:
    found = metered(Card(stalls=(2.0, 2.7)))
    assert found.window.estimator == ENERGY_COUNTER
    assert found.error == pytest.approx(0.0, abs=0.005)


def test_short_stall_that_loses_some_energy_is_noted() -> None:
    window = metered(Card(stalls=(2.0, 2.3), forgets=True)).window
    assert window.estimator == ENERGY_COUNTER
    assert "beside the energy counter" in window.notes[0]


def test_short_stall_that_loses_much_energy_costs_the_counter() -> None:
    """The figure was once 23 % too low, with a note."""
    found = metered(Card(stalls=(2.0, 2.7), forgets=True))
    assert found.window.estimator == POWER_READINGS
    assert "where its power readings say 260 W" in found.window.notes[0]
    assert found.error == pytest.approx(0.0, abs=0.005)


def test_counter_that_runs_backwards_is_not_believed() -> None:
    gpu, library = scripted(Card())
    shown = library.nvmlDeviceGetTotalEnergyConsumption
    library.nvmlDeviceGetTotalEnergyConsumption = (  # type: ignore[method-assign]
        lambda handle: shown(handle) if gpu.clock.now() < 1003.0 else 1234
    )
    window = meter_kernel(board_of(gpu, library), samples.copy(1024), 1e-4, 3.0)
    assert window.estimator == POWER_READINGS
    assert "ran backwards" in window.notes[0]


def test_board_that_warms_up_slowly_says_so() -> None:
    window = metered(Card(warming_w=120.0, warming_s=4.0)).window
    assert window.notes == ("power still changed after 5 s of warming up",)


@pytest.mark.parametrize("at_s", [0.0, 0.3, 1.2, 2.0, 4.0])
def test_lost_gpu_is_one_line_and_its_kernel_stops(at_s: float) -> None:
    gpu, library = scripted(Card())
    board = board_of(gpu, library)
    library.lost_from_s = gpu.clock.now() + at_s
    with pytest.raises(DeviceError, match=r"GPU 0 \(Scripted GPU\).*reset it or restart") as problem:
        meter_kernel(board, samples.copy(1024), 1e-4, 3.0)
    assert "\n" not in str(problem.value)
    assert not gpu.running


FUNCTIONS = [name for name in dir(scripted(Card())[1]) if name.startswith("nvmlDeviceGet")]
NEEDED = ("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetUUID", "nvmlDeviceGetIndex", "nvmlDeviceGetName")
CODES = [pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_UNKNOWN]


@pytest.mark.parametrize("function", [name for name in FUNCTIONS if name not in NEEDED])
@pytest.mark.parametrize("code", CODES)
def test_failed_readings_still_leave_a_figure(function: str, code: int) -> None:
    window = metered(Card(), 1.0, fails={function: code}).window
    assert window.power_w == pytest.approx(260.0, rel=0.02)


@pytest.mark.parametrize("function", NEEDED)
def test_gpu_without_a_uuid_is_one_line(function: str) -> None:
    with pytest.raises(DeviceError, match="root") as problem:
        metered(Card(), fails={function: pynvml.NVML_ERROR_NO_PERMISSION})
    assert "\n" not in str(problem.value)


def test_board_without_energy_and_power_is_refused() -> None:
    gpu, library = scripted(Card(counts=False, instantaneous=False))
    library.fails["nvmlDeviceGetPowerUsage"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    with pytest.raises(DeviceError, match="reports no power"):
        meter_kernel(board_of(gpu, library), samples.copy(1024), 1e-4, 1.0)


def test_board_with_a_counter_and_no_power_reading_is_metered() -> None:
    gpu, library = scripted(Card(instantaneous=False))
    library.fails["nvmlDeviceGetPowerUsage"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    window = meter_kernel(board_of(gpu, library), samples.copy(1024), 1e-4, 3.0)
    assert window.estimator == ENERGY_COUNTER
    assert window.power_w == pytest.approx(260.0, rel=0.01)
    assert window.idle_power_w == pytest.approx(70.0, rel=0.01)
    assert math.isnan(window.sampled_power_w)
    assert window.notes == ("the board reports no power now; energy is from its counter alone",)


def test_failed_clock_reading_leaves_the_others() -> None:
    gpu, library = scripted(Card())
    told = library.nvmlDeviceGetClockInfo

    def sometimes(handle: int, kind: int) -> int:
        if int(gpu.clock.now() * 10) % 2:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        return told(handle, kind)

    library.nvmlDeviceGetClockInfo = sometimes  # type: ignore[method-assign]
    window = meter_kernel(board_of(gpu, library), samples.copy(1024), 1e-4, 1.0)
    assert (window.clock_mhz, window.notes) == (1410.0, ())
    library.fails["nvmlDeviceGetClockInfo"] = pynvml.NVML_ERROR_NOT_SUPPORTED
    window = meter_kernel(board_of(gpu, library), samples.copy(1024), 1e-4, 1.0)
    assert math.isnan(window.clock_mhz)
    assert window.notes == ("the board does not report its clock",)


def test_counter_and_power_sensor_that_do_not_change_are_refused() -> None:
    gpu, library = scripted(Card(counts=False, noise=0.0))
    with pytest.raises(DeviceError, match=r"counts no energy, and the power sensor stays at 260\.0 W"):
        meter_kernel(board_of(gpu, library), samples.copy(1024), 1e-4, 1.0)
    assert not gpu.running


def test_mig_instance_is_not_metered() -> None:
    gpu, library = scripted(Card(mig=True))
    with pytest.raises(DeviceError, match=r"split by MIG.*latency can be timed"):
        board_of(gpu, library)


@pytest.mark.parametrize(
    ("name", "arch", "averaging_s"),
    [("NVIDIA A40", 7, 1.0), ("NVIDIA A100-SXM4-40GB", 7, 0.0), ("V100", 5, 0.0)],
)
def test_readings_without_field_186_are_means_on_most_cards(name: str, arch: int, averaging_s: float) -> None:
    gpu, library = scripted(Card(name=name, arch=arch, instantaneous=False))
    assert board_of(gpu, library).averaging_s == averaging_s


@pytest.mark.parametrize(
    ("call_s", "is_noted"), [(0.05, True), (0.1, True), (0.0371, False), (0.0001, False)]
)
def test_calls_in_step_with_the_sensor_are_noted(call_s: float, is_noted: bool) -> None:
    notes = metered(Card(call_s=call_s, swing_w=40.0, share=0.25)).window.notes
    assert any("are in step with the sensor (100 ms)" in note for note in notes) is is_noted
