import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from ekc import devices
from ekc.codegen.compiled import digest_kernel
from ekc.devices.device import Device
from ekc.devices.simulated.device import SimulatedDevice
from ekc.devices.simulated.specs import A100, find_spec
from ekc.errors import DeviceError, InvalidInput
from tests.devices import samples


@pytest.fixture
def a100() -> Device:
    return devices.open("a100")


def test_label_says_simulated(a100: Device) -> None:
    assert a100.simulated
    assert a100.label == "a100 (simulated)"
    assert a100.meter(samples.copy(1 << 20)).conditions.simulated


def test_order_of_measurements_changes_no_figure(a100: Device) -> None:
    first, second = samples.copy(1 << 20), samples.matvec(2048)
    ahead = (a100.time(first), a100.meter(first, repeat=2), a100.time(second))
    other = devices.open("a100")
    behind = (other.time(second), other.meter(first, repeat=2), other.time(first))
    assert ahead == (behind[2], behind[1], behind[0])


def test_other_process_gives_the_same_figures(a100: Device) -> None:
    script = (
        "from ekc import devices; from tests.devices import samples\n"
        "print(repr(devices.open('a100').meter(samples.copy(1 << 20)).energy_j))"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(said.stdout) == a100.meter(samples.copy(1 << 20)).energy_j


def test_repeats_differ_a_little(a100: Device) -> None:
    kernel = samples.matvec(2048)
    times = [a100.time(kernel, repeat=draw).latency_s for draw in range(20)]
    assert len(set(times)) == 20
    assert np.std(times) / np.mean(times) < 0.003


def test_header_comment_does_not_change_figures(a100: Device) -> None:
    kernel = samples.copy(1 << 20)
    dressed = replace(kernel, cuda_source="/* made\n today */\n\n// by ekc\n" + kernel.cuda_source)
    assert digest_kernel(dressed) == digest_kernel(kernel)
    assert a100.time(dressed) == a100.time(kernel)
    assert digest_kernel(replace(kernel, cuda_source="")) != digest_kernel(kernel)


def test_one_text_compiled_twice_is_two_kernels_whichever_comes_first(a100: Device) -> None:
    kernel = samples.sgemm(1024)
    resources = replace(kernel.resources[0], registers=255)
    other = replace(kernel, cubin=kernel.cubin + b"other", resources=(resources,))
    ahead = (a100.time(kernel), a100.time(other))
    again = devices.open("a100")
    assert (again.time(other), again.time(kernel)) == ahead[::-1]
    assert ahead[0] != ahead[1]


def test_device_without_residual_follows_its_models(a100: Device) -> None:
    plain = SimulatedDevice(find_spec("a100"), has_residual=False)
    kernel = samples.copy(1 << 20)
    other = replace(kernel, cuda_source=kernel.cuda_source.replace("+", "+ 0 +"))
    assert digest_kernel(other) != digest_kernel(kernel)
    noise = 0.003
    times = [device.time(k).latency_s for device in (plain, a100) for k in (kernel, other)]
    assert times[0] == pytest.approx(times[1], rel=noise)
    assert times[0] != pytest.approx(times[2], rel=noise)
    assert plain.driver == f"{a100.driver}, no residual" == plain.at_clock(1005).driver


def test_energy_is_power_times_time(a100: Device) -> None:
    kernel = samples.matvec(2048)
    found = a100.meter(kernel)
    assert found.energy_j == pytest.approx(found.power_w * a100.time(kernel).latency_s, rel=0.01)
    assert found.energy_interval_j.low < found.energy_j < found.energy_interval_j.high


def test_power_cap_shows_in_the_conditions() -> None:
    # A board with less to draw than the product takes at the top clock, by more than any seeded residual.
    board = SimulatedDevice(replace(A100, power=replace(A100.power, tdp_w=180.0)))
    kernel = samples.sgemm(4096)
    hot, cool = board.at_clock(1410).meter(kernel), board.at_clock(1005).meter(kernel)
    assert hot.conditions.throttle == ("power cap",)
    assert hot.conditions.clock_mhz < 1410
    assert cool.conditions.throttle == ()
    assert cool.energy_j < hot.energy_j
    assert hot.power_w <= 184


def test_clocks_that_are_not_offered_are_refused(a100: Device) -> None:
    assert 1275 in a100.clocks().mhz
    with pytest.raises(DeviceError, match=r"1300 MHz.*nearest: 1305"):
        a100.at_clock(1300)


@pytest.mark.parametrize("mhz", ["1275", 1275.0, None, True])
def test_fractional_clock_is_one_line(a100: Device, mhz: object) -> None:
    with pytest.raises(DeviceError, match="a clock is a whole number of MHz, not "):
        a100.at_clock(mhz)  # type: ignore[arg-type]


def test_peaks_follow_the_clock(a100: Device) -> None:
    assert a100.at_clock(1410).peaks.fp32_flops == pytest.approx(19.5e12, rel=0.01)


def test_kernel_for_a_newer_gpu_is_refused(a100: Device) -> None:
    with pytest.raises(DeviceError, match="sm_90"):
        a100.time(samples.copy(1 << 20, "sm_90"))


def test_block_that_does_not_fit_is_refused(a100: Device) -> None:
    kernel = samples.copy(1 << 20)
    greedy = replace(kernel, launches=(replace(kernel.launches[0], shared_bytes=200_000),))
    with pytest.raises(DeviceError, match="shared memory"):
        a100.time(greedy)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_metering_window_must_be_positive(a100: Device, seconds: float) -> None:
    with pytest.raises(InvalidInput, match="window"):
        a100.meter(samples.copy(1 << 20), seconds=seconds)


def test_cold_l2_costs_time_where_data_fit_and_is_stated() -> None:
    """Data of 2 MiB are in L2 from call to call; 512 MiB are not in any case. Metered calls are warm."""
    warm, cold = devices.open("a100@no-residual"), devices.open("a100@cold@no-residual")
    small, large = samples.copy(1 << 18), samples.copy(1 << 26)
    assert cold.time(small).latency_s > 1.2 * warm.time(small).latency_s
    assert cold.time(large).latency_s == pytest.approx(warm.time(large).latency_s, rel=0.01)
    assert (warm.time(small).conditions.l2, cold.time(small).conditions.l2) == ("warm", "cold")
    assert cold.meter(small).conditions.l2 == "warm"
    assert cold.meter(small).energy_j == pytest.approx(warm.meter(small).energy_j, rel=0.01)
    assert cold.data_policy != warm.data_policy
    assert cold.at_clock(1410).time(small).conditions.l2 == "cold"
