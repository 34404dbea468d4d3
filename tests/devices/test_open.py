import subprocess
import sys

import pytest

from ekc import devices
from ekc.devices import nvml
from ekc.devices.simulated import specs
from ekc.errors import DeviceError


@pytest.mark.parametrize("name", specs.list_names())
def test_every_simulated_gpu_opens(name: str) -> None:
    device = devices.open(name)
    assert (device.name, device.simulated) == (name, True)
    assert device.limits.sms > 0


def test_simulated_gpu_opens_without_its_residual() -> None:
    plain, drawn = devices.open("h200@no-residual"), devices.open("h200")
    assert (plain.name, plain.label) == ("h200", "h200, no residual (simulated)")
    assert plain.driver == f"{drawn.driver}, no residual"


@pytest.mark.parametrize("target", ["a100@", "a100@hot", "a100@noresidual"])
def test_unknown_suffix_is_refused(target: str) -> None:
    with pytest.raises(DeviceError, match="choose a100, a100@cold or a100@no-residual"):
        devices.open(target)


def test_auto_is_a_simulated_a100_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "count_gpus", lambda: nvml.GpuAbsence("no NVIDIA driver"))
    assert devices.open("auto").label == "a100 (simulated)"


@pytest.mark.parametrize(
    ("target", "found", "words"),
    [
        ("cuda:0", nvml.GpuAbsence("no NVIDIA driver (not found)"), "no NVIDIA driver"),
        ("cuda", nvml.GpuAbsence("no NVIDIA driver (not found)"), "--target a100"),
        ("cuda:3", 2, "cuda:0 to cuda:1"),
        ("cuda:one", 2, "must be a number"),
    ],
)
def test_cuda_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, target: str, found: int | nvml.GpuAbsence, words: str
) -> None:
    monkeypatch.setattr(nvml, "count_gpus", lambda: found)
    with pytest.raises(DeviceError) as refused:
        devices.open(target)
    message = str(refused.value)
    assert words in message
    assert "--target a100" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("target", "near"),
    [
        ("a10", "a100"),
        ("H200", "h200"),
        ("rtx_4090", "rtx4090"),
        ("a10@no-residual", "a100"),
        ("auto@no-residual", "auto"),
    ],
)
def test_misspelt_target_gets_a_suggestion(target: str, near: str) -> None:
    with pytest.raises(DeviceError, match=f"did you mean '{near}'") as refused:
        devices.open(target)
    assert all(name in str(refused.value) for name in specs.list_names())


def test_unknown_target_gets_the_list() -> None:
    with pytest.raises(DeviceError) as refused:
        devices.open("toaster")
    assert "did you mean" not in str(refused.value)


def test_import_of_the_package_is_light() -> None:
    script = "import sys, ekc.devices; print([m for m in ('numpy', 'pynvml', 'cuda') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
