import re
import sys
from pathlib import Path

import pynvml
import pytest

from ekc import devices
from ekc.devices import nvml
from ekc.devices.nvml import library
from ekc.devices.nvml import library as presence
from ekc.errors import ActuatorError, DeviceError


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A driver that starts and stops without an error."""
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    return monkeypatch


def test_gpus_are_counted(driver: pytest.MonkeyPatch) -> None:
    driver.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    assert nvml.count_gpus() == 2


def test_driver_without_gpus_is_no_gpu(driver: pytest.MonkeyPatch) -> None:
    driver.setattr(pynvml, "nvmlDeviceGetCount", lambda: 0)
    assert nvml.count_gpus() == nvml.GpuAbsence("the NVIDIA driver sees no GPU")


def refusing(monkeypatch: pytest.MonkeyPatch, code: int, *traces: Path) -> nvml.GpuAbsence:
    """The reason where NVML does not start."""

    def refuse() -> None:
        raise pynvml.NVMLError(code)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    monkeypatch.setattr(presence, "DRIVER_FILES", traces)
    monkeypatch.setattr(library, "_initialised", False)
    found = nvml.count_gpus()
    assert isinstance(found, nvml.GpuAbsence)
    assert "\n" not in found.reason
    with pytest.raises(ActuatorError, match=re.escape(found.reason)):
        library.load_nvml()
    return found


def test_missing_driver_is_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = refusing(monkeypatch, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, tmp_path / "absent")
    assert found == nvml.GpuAbsence("no NVIDIA driver here (NVML Shared Library Not Found)")


def test_driver_without_its_library_is_not_called_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a container with compute capability alone: CUDA works there."""
    found = refusing(monkeypatch, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, tmp_path)
    assert found.reason.startswith(f"there is an NVIDIA driver ({tmp_path}), but its library NVML (libnv")
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in found.reason
    with pytest.warns(UserWarning, match="target auto is a simulated a100: there is an NVIDIA driver"):
        assert devices.open("auto").label == "a100 (simulated)"


def test_library_of_another_version_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    found = refusing(monkeypatch, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    assert found.reason.startswith("the NVIDIA driver's library NVML does not start (RM has detected")
    assert found.is_uncertain


def test_missing_pynvml_gives_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(library, "_initialised", False)
    with pytest.raises(ActuatorError, match=r"pynvml cannot be loaded \(.*\): pip install nvidia-ml-py"):
        library.load_nvml()
    with pytest.raises(DeviceError, match=r"no device 'cuda:0': pynvml cannot be loaded.*or use a simulated"):
        devices.open("cuda:0")
