"""A real GPU at other clocks: fixed during a measurement, restored after it, refused in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

import ekc
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from ekc.devices.cuda import gpu as real_gpu
from ekc.devices.cuda.device import CudaDevice, open_cuda
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import ActuatorError, DeviceError
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.schedule.naive import make_naive_schedule
from tests.scripted.cuda.node import forked
from tests.scripted.nvml.boards import GEARS, ScriptedBoards


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompiledKernel:
    """Compile in a cache of its own, in which the scripted driver finds kernels."""
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path / "cache"))
    return compile_schedule(make_naive_schedule(ekc.matmul(16, 16, 16)), "sm_80")


@pytest.fixture
def device(
    here: ScriptedBoards, kernel: CompiledKernel, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CudaDevice]:
    monkeypatch.setattr(real_gpu, "explain_refusal", lambda: "")
    found = open_cuda("cuda:0", forked(launch_s=5e-3), lambda uuid: GpuSensors(here.get_uuid()))
    yield found
    found.close()


def test_clock_is_fixed_while_a_kernel_is_timed(
    device: CudaDevice, here: ScriptedBoards, kernel: CompiledKernel
) -> None:
    before = here.read_limits()
    assert device.clocks().mhz == tuple(GEARS)
    slow = device.at_clock(900)
    found = slow.time(kernel).conditions
    assert (found.clock_regime, found.clock_mhz) == ("fixed 900 MHz", 900.0)
    assert here.read_limits() == before
    free = device.time(kernel).conditions
    assert (free.clock_regime, free.clock_mhz) == ("free", 1995.0)
    assert slow.peaks.fp32_flops < device.peaks.fp32_flops
    quantities = analyse_program(make_naive_schedule(ekc.matmul(256, 256, 256)).program, device.limits)
    assert slow.prior(quantities).latency_s > device.prior(quantities).latency_s


def test_clock_that_is_not_offered_is_refused(device: CudaDevice) -> None:
    with pytest.raises(
        DeviceError, match="cannot be set to 901 MHz: it offers 300 to 1995 MHz; nearest: 900"
    ):
        device.at_clock(901)
    with pytest.raises(DeviceError, match="a clock is a whole number of MHz, not '900'"):
        device.at_clock("900")  # type: ignore[arg-type]


def test_driver_that_refuses_a_clock_is_one_line(
    device: CudaDevice, here: ScriptedBoards, kernel: CompiledKernel
) -> None:
    here.update_script(fail={"nvmlDeviceSetPowerManagementLimit": pynvml.NVML_ERROR_NO_PERMISSION})
    with pytest.raises(ActuatorError, match="root or CAP_SYS_ADMIN"):
        device.at_clock(900).time(kernel)
    assert here.read_calls() == []
    assert device.time(kernel).latency_s > 0


def test_missing_right_is_the_reason_for_no_clocks(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        real_gpu, "explain_refusal", lambda: "this process lacks CAP_SYS_ADMIN, which root has"
    )
    monkeypatch.setattr(real_gpu.zeusd, "find_daemon_address", lambda: None)
    assert device.clocks().mhz == ()
    with pytest.raises(DeviceError, match="cannot be set to 900 MHz: this process lacks CAP_SYS_ADMIN"):
        device.at_clock(900)
