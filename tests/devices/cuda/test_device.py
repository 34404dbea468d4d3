"""Targets "cuda:...", opened over scripted drivers in worker processes."""

from __future__ import annotations

from dataclasses import asdict, fields
from functools import partial
from typing import Any

import numpy as np
import pytest

import ekc
from ekc import devices
from ekc.codegen.nvrtc import version
from ekc.devices import nvml
from ekc.devices.analytic_prior import predict_prior
from ekc.devices.cuda.device import CudaDevice, CudaTarget, parse_target
from ekc.devices.cuda.driver import CUDA_12_INSTALL_COMMAND, explain_old_driver
from ekc.devices.device import Peaks, Prior
from ekc.devices.measurement_json import dataclass_from_json
from ekc.devices.simulated import data_sheet_prior
from ekc.devices.simulated.specs import A100
from ekc.errors import DeviceError
from ekc.ir.analysis.analysis import analyse_program
from ekc.ir.schedule.naive import make_naive_schedule
from tests.scripted.cuda.driver import FACTS, ScriptedDriver
from tests.scripted.cuda.forked_worker import Forked
from tests.scripted.cuda.node import ScriptedNode, forked

LIMITS = A100.limits()


def opened(text: str, **script: Any) -> CudaDevice:
    return ScriptedNode(script.get("gpus", 1)).open(text, forked(**script))


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("cuda", CudaTarget((0,), False)),
        ("cuda:3", CudaTarget((3,), False)),
        ("cuda:2,0,2", CudaTarget((2, 0), False)),
        ("cuda:all@cold", CudaTarget(None, True)),
        ("cuda@warm", CudaTarget((0,), False)),
    ],
)
def test_target_is_parsed(text: str, target: CudaTarget) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["cuda:one", "cuda:", "cuda:-1", "cuda:0@hot", "cuda:0,", "cuda:all,1"])
def test_targets_of_other_forms_are_refused(text: str) -> None:
    with pytest.raises(DeviceError, match="the index must be a number"):
        parse_target(text)


def test_gpu_as_its_driver_describes_it() -> None:
    device = opened("cuda:0")
    assert (device.name, device.simulated, device.arch) == ("Scripted A100", False, "sm_80")
    assert device.label == "Scripted A100 (cuda:0)"
    assert device.driver == "570.86.15, CUDA 13.0"
    assert device.limits.sms == 108
    assert device.limits.shared_bytes_per_sm == 164 * 1024
    assert device.limits == devices.open("a100").limits
    assert device.peaks.fp32_flops == pytest.approx(19.5e12, rel=1e-3)
    assert device.peaks.flops_by_type["float16"] == pytest.approx(312e12, rel=1e-3)
    assert device.peaks.board_power_w == 400.0
    assert device.peaks.dram_bytes_per_s == pytest.approx(1555e9, rel=1e-3)


def test_prior_of_a_known_gpu_is_the_model_of_its_data_sheet() -> None:
    quantities = analyse_program(make_naive_schedule(ekc.matmul(256, 256, 256)).program, LIMITS)
    known = opened("cuda:0")
    expected = data_sheet_prior.predict_prior(A100, quantities, 1410.0)
    found = known.prior(quantities)
    np.testing.assert_allclose(found.latency_s, expected.latency_s, rtol=1e-3)
    np.testing.assert_allclose(found.power_w, expected.power_w, rtol=1e-3)
    twice = opened("cuda:0", facts=FACTS | {"MEMORY_CLOCK_RATE": 2 * FACTS["MEMORY_CLOCK_RATE"]})
    assert (twice.prior(quantities).latency_s <= found.latency_s).all(), "bandwidth as the driver reports it"


def test_prior_of_an_unknown_gpu_is_analytic() -> None:
    quantities = analyse_program(make_naive_schedule(ekc.matmul(256, 256, 256)).program, LIMITS)
    for unknown in (
        opened("cuda:0", facts=FACTS | {"MULTIPROCESSOR_COUNT": 42}),
        opened("cuda:0", product="Scripted V100"),
    ):
        found, expected = unknown.prior(quantities), predict_prior(quantities, unknown.peaks)
        for field in fields(Prior):
            np.testing.assert_array_equal(getattr(found, field.name), getattr(expected, field.name))


def test_missing_gpus_are_refused() -> None:
    assert opened("cuda:all", gpus=3).label == "Scripted A100 (cuda:0,1,2)"
    with pytest.raises(DeviceError, match=r"there are 2 GPU\(s\), cuda:0 to cuda:1"):
        opened("cuda:0,2", gpus=2)
    with pytest.raises(DeviceError, match="cuda:1: cuDeviceGetName: CUDA_ERROR_INVALID_DEVICE"):
        opened("cuda:1")


def test_figures_of_unlike_gpus_are_not_mixed() -> None:
    def make(index: int) -> Forked:
        return Forked(partial(ScriptedDriver, gpus=2, product=f"GPU {index}"), index)

    with pytest.raises(DeviceError, match="GPUs of one kind only"):
        ScriptedNode(2).open("cuda:all", make)


def test_driver_that_is_too_old_says_so_in_one_line() -> None:
    needed = version().split(".")[0]
    words = rf"its driver is for CUDA 11\.8, too old.* CUDA {needed}\.0 or later"
    with pytest.raises(DeviceError, match=words) as no:
        opened("cuda:0", cuda=11080)
    assert "\n" not in str(no.value)


def test_driver_for_cuda_12_gets_the_install_command() -> None:
    assert explain_old_driver(12040, "12.9") is None
    assert CUDA_12_INSTALL_COMMAND in str(explain_old_driver(12040, "13.5"))
    assert CUDA_12_INSTALL_COMMAND not in str(explain_old_driver(11080, "12.9"))


def test_newer_driver_and_unknown_gpu_open() -> None:
    assert opened("cuda:0", cuda=14010).driver == "570.86.15, CUDA 14.1"
    assert opened("cuda:0", facts=FACTS | {"COMPUTE_CAPABILITY_MINOR": 5}).arch == "sm_80"
    with pytest.raises(DeviceError, match=r"no machine code for compute capability 3\.0"):
        opened("cuda:0", facts=FACTS | {"COMPUTE_CAPABILITY_MAJOR": 3})


@pytest.mark.parametrize(
    ("silent", "words"),
    [
        (("MEMORY_CLOCK_RATE",), "assumed for predictions is memory of 780 GB/s; no measurement uses it"),
        (("GLOBAL_MEMORY_BUS_WIDTH",), "is memory of 780 GB/s"),
        (("CLOCK_RATE", "MEMORY_CLOCK_RATE"), "is a clock of 1000 MHz, memory of 553 GB/s"),
    ],
)
def test_clock_of_0_leaves_ceilings_above_0_with_a_warning(silent: tuple[str, ...], words: str) -> None:
    """As on Jetson and some virtual GPUs; a recording with a ceiling of 0 could not be read."""
    with pytest.warns(UserWarning, match=f"the driver does not report all of Scripted A100: .*{words}"):
        peaks = opened("cuda:0", facts=FACTS | dict.fromkeys(silent, 0)).peaks
    told = asdict(peaks)
    assert dataclass_from_json(Peaks, told) == peaks
    assert all(flops > 0 for flops in peaks.flops_by_type.values())


def test_worker_process_reports_a_missing_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a script: `python -m`, cuda.bindings, and a machine whose GPUs are hidden or absent."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(nvml, "count_gpus", lambda: 1)
    with pytest.raises(DeviceError) as refused:
        devices.open("cuda:0")
    message = str(refused.value)
    assert message.startswith("cuda:0: cuInit: ")
    assert message.endswith("--target a100")
    assert "\n" not in message
