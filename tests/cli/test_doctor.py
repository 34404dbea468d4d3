"""`ekc doctor` on scripted GPUs: the facts of each, and the reasons for those that are missing."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pynvml
import pytest

from ekc.cli import doctor_gpus
from ekc.codegen.nvrtc import version
from ekc.devices.nvml import sensors
from ekc.devices.nvml.library import explain_refusal
from tests.cli.conftest import CommandLine
from tests.scripted.nvml.card import Card, Clock, ScriptedGpu
from tests.scripted.nvml.library import ScriptedNvml


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a machine of scripted cards with one virtual clock."""

    def machine(*cards: Card) -> ScriptedNvml:
        clock = Clock()
        library = ScriptedNvml(*(ScriptedGpu(card, np.random.default_rng(0), clock) for card in cards))
        monkeypatch.setitem(sys.modules, "pynvml", library)
        monkeypatch.setattr("ekc.devices.nvml.library._initialised", False)
        monkeypatch.setattr(
            doctor_gpus, "observe_sensors", partial(sensors.observe_sensors, now=clock.now, sleep=clock.sleep)
        )
        monkeypatch.setattr(doctor_gpus, "explain_refusal", lambda: "")
        return library

    return machine


def test_complete_gpu_has_all_facts(scripted: Any, cli: CommandLine) -> None:
    scripted(Card(name="NVIDIA H100 80GB HBM3"))
    found = cli.json("doctor")["gpu"]
    assert (found["count"], found["driver"], found["cuda"]) == (1, "570.86.15", "13.0")
    assert found["cubins"].startswith("loads those of NVRTC")
    one = found["each"][0]
    assert one["name"] == "GPU 0 (NVIDIA H100 80GB HBM3)"
    assert one["arch"] == "sm_90a"
    assert one["counter"] == "moves every 100 ms"
    assert "instantaneous (field 186), new every 100 ms, looks at 25 of every 100 ms" in one["power"]
    assert (one["cap"], one["mig"]) == ("400 W", "off")
    assert one["clocks"] == "1410 MHz now; this process may set them"
    assert one["measured"] == "latency; energy by the counter, 10 ticks a second"


def test_each_gpu_has_its_own_entry(scripted: Any, cli: CommandLine) -> None:
    scripted(Card(), Card(tick_s=0.02))
    lines = cli("doctor").out.splitlines()
    assert [line[:6] for line in lines if line.startswith("gpu ")] == ["gpu   ", "gpu 0 ", "gpu 1 "]
    assert any("moves every 20 ms" in line for line in lines)


@pytest.mark.parametrize(
    ("card", "key", "words"),
    [
        (Card(counts=False), "counter", "none (nvmlDeviceGetTotalEnergyConsumption: Not Supported)"),
        (Card(counts=False), "measured", "latency; energy by readings of power alone"),
        (Card(noise=0.0, counts=False), "measured", "latency; no energy: neither counter nor power moves"),
        (Card(instantaneous=False), "power", "a mean over 1 s (no field 186)"),
        (Card(instantaneous=False, arch=5), "power", "instantaneous (no field 186)"),
        (Card(mig=True), "measured", "latency; no energy: GPU 0 (Scripted GPU) is split by MIG"),
        (Card(reasons=0x20), "cap", "400 W; throttled now: software thermal slowdown"),
        (Card(cap_mw=None), "cap", "not reported"),
        (Card(capability=(9, 9)), "arch", "sm_99, which NVRTC does not know; sm_90 is compiled for"),
    ],
)
def test_missing_sensors_are_reported(
    scripted: Any, cli: CommandLine, card: Card, key: str, words: str
) -> None:
    scripted(card)
    assert words in cli.json("doctor")["gpu"]["each"][0][key]


def test_missing_throttle_reasons_are_reported(scripted: Any, cli: CommandLine) -> None:
    library = scripted(Card(reasons=0x4))
    for name in ("Event", "Throttle"):
        library.fails[f"nvmlDeviceGetCurrentClocks{name}Reasons"] = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    assert cli.json("doctor")["gpu"]["each"][0]["cap"] == "400 W; throttle reasons are not reported"


def test_old_driver_is_reported(scripted: Any, cli: CommandLine) -> None:
    scripted(Card()).cuda = 11080
    needed = version().split(".")[0]
    assert f"update the driver to one for CUDA {needed}.0" in cli.json("doctor")["gpu"]["cubins"]


NO_GPUS = {"nvmlInit", "nvmlShutdown", "nvmlDeviceGetCount"}
NO_DRIVER = {"nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2"}
NO_GPU = {f"nvmlDeviceGet{x}" for x in ("HandleByIndex", "HandleByUUID", "UUID", "Index", "Name")}
"""Functions without which a GPU has no facts."""
LINES = {
    "nvmlDeviceGetClockInfo": {"clocks"},
    "nvmlDeviceGetCudaComputeCapability": {"arch"},
    "nvmlDeviceGetEnforcedPowerLimit": {"cap"},
    "nvmlDeviceGetFieldValues": {"power"},
    "nvmlDeviceGetTotalEnergyConsumption": {"counter", "measured"},
}
"""Function -> facts that change if it fails; functions not named here change none."""


@pytest.mark.parametrize("function", [name for name in dir(ScriptedNvml) if name.startswith("nvml")])
def test_failing_call_changes_its_own_lines_alone(scripted: Any, cli: CommandLine, function: str) -> None:
    scripted(Card())
    well = cli.json("doctor")["gpu"]
    scripted(Card()).fails[function] = pynvml.NVML_ERROR_UNKNOWN
    found = cli.json("doctor")["gpu"]
    if function in NO_GPUS | NO_DRIVER:
        assert found.pop("reason").endswith("Unknown Error" if function in NO_DRIVER else "(Unknown Error)")
        assert found.pop("measured").startswith("no latency and no energy")
        assert found == {"count": int(function in NO_DRIVER)}
        return
    (one,), (other,) = well.pop("each"), found.pop("each")
    assert found == well
    if function in NO_GPU:
        assert other.pop("measured").startswith("nothing: ")
        assert other == {"name": "GPU 0"}
    else:
        assert other.keys() == one.keys()
        lines = LINES.get(function, set())
        assert {key for key in one if one[key] != other[key]} == lines
        assert "nan" not in " ".join(other[key] for key in lines)


def test_lost_gpu_does_not_hide_the_others(scripted: Any, cli: CommandLine) -> None:
    library = scripted(Card(), Card())
    first, get = library.gpus[0], library.nvmlDeviceGetTotalEnergyConsumption

    def lost(handle: int) -> int:
        if library.gpus[handle] is first:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return int(get(handle))

    library.nvmlDeviceGetTotalEnergyConsumption = lost
    broken, well = cli.json("doctor")["gpu"]["each"]
    assert broken["measured"].startswith("nothing: GPU 0 (Scripted GPU), nvmlDeviceGetTotal")
    assert well["measured"].startswith("latency; energy")


def test_clock_permission_is_reported(
    scripted: Any, cli: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scripted(Card())
    monkeypatch.setattr(
        doctor_gpus, "explain_refusal", lambda: "this process lacks CAP_SYS_ADMIN, which root has"
    )
    monkeypatch.delenv("ZEUSD_HOST_PORT", raising=False)
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(tmp_path / "zeusd.sock"))
    monkeypatch.setattr("ekc.devices.clocks.zeusd.find_daemon_address", lambda: None)
    clocks = cli.json("doctor")["gpu"]["each"][0]["clocks"]
    assert clocks.endswith(
        "cannot be set: this process lacks CAP_SYS_ADMIN, which root has, and no daemon runs"
    )
    monkeypatch.setattr("ekc.devices.clocks.zeusd.find_daemon_address", lambda: "/run/zeusd/zeusd.sock")
    assert "but zeusd at /run/zeusd/zeusd.sock may set them" in cli.json("doctor")["gpu"]["each"][0]["clocks"]


@pytest.mark.parametrize(
    ("capabilities", "may"), [("000001ffffffffff", True), ("0000000000000000", False), ("200000", True)]
)
def test_capabilities_are_read_from_proc(tmp_path: Path, capabilities: str, may: bool) -> None:
    status = tmp_path / "status"
    status.write_text(f"Name:\tpython\nCapEff:\t{capabilities}\n")
    assert (explain_refusal(status) == "") is may
    assert explain_refusal(tmp_path / "nothing")


def test_missing_gpu_is_reported(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    found = cli.json("doctor")["gpu"]
    assert found["count"] == 0
    assert "no NVIDIA driver" in found["reason"]
    assert found["measured"].startswith("no latency and no energy: simulated devices answer")
