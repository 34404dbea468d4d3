import pynvml
import pytest

from ekc.devices import nvml


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A driver that starts and stops without complaint."""
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    return monkeypatch


def test_gpus_are_counted(driver: pytest.MonkeyPatch) -> None:
    driver.setattr(pynvml, "nvmlDeviceGetCount", lambda: 2)
    assert nvml.gpus() == 2


def test_a_driver_without_gpus(driver: pytest.MonkeyPatch) -> None:
    driver.setattr(pynvml, "nvmlDeviceGetCount", lambda: 0)
    assert nvml.gpus() == nvml.Absent("the NVIDIA driver sees no GPU")


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    found = nvml.gpus()
    assert isinstance(found, nvml.Absent)
    assert found.reason.startswith("no NVIDIA driver")
