"""Limits set through zeusd: settings, refusals and their messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ekc.devices.clocks.limits import NvmlLimits
from ekc.devices.clocks.open import choose_actuator, reopen_actuator
from ekc.devices.clocks.zeusd import ZeusdLimits, _describe_refusal
from ekc.errors import ActuatorError
from tests.devices.clocks.helpers import check_all_limits
from tests.scripted.nvml.boards import ScriptedBoards
from tests.scripted.zeusd import ScriptedZeusd

NO_PERMISSION = 4


@pytest.fixture(params=["unix", "tcp"])
def zeusd(request: pytest.FixtureRequest, here: ScriptedBoards, tmp_path: Path) -> Iterator[ScriptedZeusd]:
    daemon = ScriptedZeusd(here, tmp_path / "zeusd.sock" if request.param == "unix" else None)
    yield daemon
    daemon.close()


def test_zeusd_sets_upper_limits_of_the_gpu_at_the_same_pci_address(
    here: ScriptedBoards, zeusd: ScriptedZeusd
) -> None:
    settable = ZeusdLimits(here.get_uuid(0), zeusd.address)
    assert settable.label == f"zeusd at {zeusd.address}, GPU 0 (Scripted GPU)"
    check_all_limits(settable, here)
    assert {query["gpu_ids"] for _, query in zeusd.requests} == {"1"}
    assert {query["block"] for _, query in zeusd.requests} == {"true"}


def test_other_process_opens_the_same_actuator(here: ScriptedBoards, zeusd: ScriptedZeusd) -> None:
    for settable in (NvmlLimits(here.get_uuid(1)), ZeusdLimits(here.get_uuid(1), zeusd.address)):
        again = reopen_actuator(settable.reference)
        assert again.label == settable.label
        again.set_limit("sm_mhz", 900)
        assert here.read_limits(1)[0] == [300, 900]
        again.set_limit("sm_mhz", None)


def test_zeusd_is_used_without_nvml_permission(
    here: ScriptedBoards, zeusd: ScriptedZeusd, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.update_script(fail={"nvmlDeviceSetPowerManagementLimit": NO_PERMISSION})
    with pytest.raises(ActuatorError, match=r"CAP_SYS_ADMIN.*no zeusd at /run/zeusd/zeusd\.sock"):
        choose_actuator("auto", here.get_uuid())
    monkeypatch.setenv("ZEUSD_SOCK_PATH" if zeusd.address[0] == "/" else "ZEUSD_HOST_PORT", zeusd.address)
    assert isinstance(choose_actuator("auto", here.get_uuid()), ZeusdLimits)
    assert here.read_limits() == (None, None, 280_000)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            (403, {"errors": {"1": "NVML error: no permission"}}),
            "HTTP 403, not permitted.*NVML error: no perm",
        ),
        ((500, {"errors": {"1": "GPU is lost"}}), "HTTP 500, GPU is lost"),
        ((404, None), "HTTP 404, no such endpoint"),
        ((500, "not what was agreed"), "HTTP 500"),
    ],
)
def test_zeusd_refusal_is_one_line(
    here: ScriptedBoards, zeusd: ScriptedZeusd, answer: tuple[int, object], words: str
) -> None:
    settable = ZeusdLimits(here.get_uuid(), zeusd.address)
    zeusd.refusal = answer
    with pytest.raises(ActuatorError, match=words) as caught:
        settable.set_limit("sm_mhz", 1200)
    assert "/gpu/set_gpu_locked_clocks" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_zeusd_token_is_sent(here: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = ScriptedZeusd(here, token="secret")
    try:
        settable = ZeusdLimits(here.get_uuid(), daemon.address)
        with pytest.raises(ActuatorError, match="set ZEUSD_TOKEN"):
            settable.set_limit("sm_mhz", 1200)
        monkeypatch.setenv("ZEUSD_TOKEN", "secret\n")  # With the newline at the end of a file.
        settable.set_limit("sm_mhz", 1200)
        assert here.read_limits()[0] == [300, 1200]
    finally:
        daemon.close()


@pytest.mark.parametrize("token", ["two\nlines", "sch\u00fcssel", "\u65e5\u672c"])
def test_zeusd_token_with_bad_characters_is_one_line(
    here: ScriptedBoards, zeusd: ScriptedZeusd, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZEUSD_TOKEN", token)
    with pytest.raises(
        ActuatorError, match="ZEUSD_TOKEN has characters that an HTTP header cannot have"
    ) as events:
        ZeusdLimits(here.get_uuid(), zeusd.address)
    assert "\n" not in str(events.value)


@pytest.mark.parametrize("where", ["gpus..example:4938", f"{'x' * 70}:4938"])
def test_zeusd_bad_host_is_one_line(here: ScriptedBoards, where: str) -> None:
    with pytest.raises(ActuatorError, match="give /path/of/socket or host:port"):
        ZeusdLimits(here.get_uuid(), where)


def test_other_server_is_one_line() -> None:
    assert (
        _describe_refusal(502, b"<html>\r\n<body>Bad gateway</body>\n")
        == "HTTP 502, <html> <body>Bad gateway</body>"
    )


def test_missing_zeusd_is_one_line(here: ScriptedBoards, zeusd: ScriptedZeusd, tmp_path: Path) -> None:
    for where in (str(tmp_path / "missing.sock"), "127.0.0.1:1"):
        with pytest.raises(ActuatorError, match="does not answer"):
            ZeusdLimits(here.get_uuid(), where)
    with pytest.raises(ActuatorError, match="host:port"):
        ZeusdLimits(here.get_uuid(), "localhost:http")
    zeusd.discovery["enabled_api_groups"] = ["gpu-read"]
    with pytest.raises(ActuatorError, match="without gpu-control"):
        ZeusdLimits(here.get_uuid(), zeusd.address)
    zeusd.discovery |= {"enabled_api_groups": ["gpu-control"], "gpus": []}
    with pytest.raises(ActuatorError, match="does not know GPU 0"):
        ZeusdLimits(here.get_uuid(), zeusd.address)


@pytest.mark.parametrize(
    "odd",
    [
        ["0"],
        "zeusd",
        {"gpus": {"0": "17:00.0"}},
        {"gpus": [{"id": 0}]},
        {"gpus": [{"id": "first", "pci_address": "0000:01:00.0"}]},
        {"gpus": [{"id": 0, "pci_address": None}]},
        {"gpu_ids": 2},
    ],
)
def test_bad_zeusd_answer_is_one_line(here: ScriptedBoards, zeusd: ScriptedZeusd, odd: object) -> None:
    zeusd.discovery = odd  # type: ignore[assignment]
    with pytest.raises(ActuatorError, match="lists its GPUs in an unknown form") as events:
        ZeusdLimits(here.get_uuid(), zeusd.address)
    assert "\n" not in str(events.value)


@pytest.mark.parametrize("address", ["0000:02:00.0", "00000000:02:00.0", "02:00.0", "0000:02:00.0".upper()])
def test_zeusd_pci_addresses_may_differ_in_form(
    here: ScriptedBoards, zeusd: ScriptedZeusd, address: str
) -> None:
    zeusd.discovery["gpus"] = [{"id": 7, "pci_address": address}]
    ZeusdLimits(here.get_uuid(1), zeusd.address).set_limit("sm_mhz", 1200)
    assert zeusd.requests[-1][1]["gpu_ids"] == "7"


def test_zeusd_without_pci_addresses_is_used_by_number(here: ScriptedBoards, zeusd: ScriptedZeusd) -> None:
    del zeusd.discovery["gpus"]
    zeusd.discovery["gpu_ids"] = [0, 1]
    ZeusdLimits(here.get_uuid(1), zeusd.address).set_limit("sm_mhz", 1200)
    assert zeusd.requests[-1][1]["gpu_ids"] == "1"
