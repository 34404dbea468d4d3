"""Allow-list files: rules, their order, and files that are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ekc.devices.clocks.daemon.allow_list import AllowList, GpuIdentity, read_allow_list
from ekc.devices.clocks.limits import Settings
from ekc.errors import ActuatorError, InvalidInput
from ekc.processes.process_facts import Caller

FIRST, SECOND = GpuIdentity(0, 0, "GPU-a"), GpuIdentity(1, 1, "GPU-b")


def _read(tmp_path: Path, text: str) -> AllowList:
    file = tmp_path / "governor.toml"
    file.write_text(text)
    file.chmod(0o644)
    return read_allow_list(file)


def test_first_rule_that_names_caller_and_gpu_counts(tmp_path: Path) -> None:
    allow_list = _read(
        tmp_path,
        """
        [[allow]]
        users = [1000, "root"]
        gpus = [1]
        lowest = {sm_mhz = 600, power_w = 150.5}
        [[allow]]
        groups = [50]
        gpus = ["GPU-a", "GPU-b"]
        [[before]]
        gpu = "GPU-b"
        sm_mhz = 1410
        """,
    )
    by_both, by_group = Caller(1, 1000, frozenset({7, 50})), Caller(1, 1001, frozenset({50}))
    assert allow_list.find_lowest(by_both, SECOND) == Settings(600, None, 150.5)
    assert allow_list.find_lowest(by_both, FIRST) == Settings()
    assert allow_list.find_lowest(by_group, SECOND) == Settings()
    assert allow_list.find_lowest(Caller(1, 0, frozenset()), SECOND).sm_mhz == 600
    with pytest.raises(ActuatorError, match=r"may not set GPU 0: .* allows 1"):
        allow_list.find_lowest(Caller(1, 1000, frozenset({7})), FIRST)
    with pytest.raises(ActuatorError, match="uid 1002 is not on the allow-list"):
        allow_list.find_lowest(Caller(1, 1002, frozenset({1000})), FIRST)
    assert allow_list.find_before(SECOND) == Settings(1410)
    assert allow_list.find_before(FIRST) == Settings()


def test_empty_list_permits_no_one(tmp_path: Path) -> None:
    with pytest.raises(ActuatorError, match=r"user root \(uid 0\) is not on the allow-list"):
        _read(tmp_path, "").find_lowest(Caller(1, 0, frozenset({0})), FIRST)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[allow]]\n", "neither users nor groups"),
        ("[[allow]]\ngpus = [0]\n", "neither users nor groups"),
        ("[[allow]]\nuser = ['root']\n", r"no key 'user'; keys are users, .*; nearest is 'users'"),
        ("[allow]\nusers = ['root']\n", r"allow: write it as \[\[allow\]\]"),
        ("[[allow]]\nusers = 'root'\n", r"users: 'root' is no list; write users = \['root'\]"),
        ("[[allow]]\nusers = ['no-such-user']\n", "users: 'no-such-user' is not known here"),
        ("[[allow]]\nusers = [-1]\n", "users: -1 is not known here"),
        ("[[allow]]\nusers = [65534]\n", "means all users that this machine does not know"),
        ("[[allow]]\ngroups = ['no-such-group']\n", "groups: 'no-such-group' is not known here"),
        ("[[allow]]\nusers = [0]\ngpus = 'all'\n", "gpus: 'all'; give a list"),
        ("[[allow]]\nusers = [0]\ngpus = [1.5]\n", "gpus: 1.5; give the number of nvidia-smi"),
        ("[[allow]]\nusers = [0]\nlowest = {sm = 600}\n", "nearest is 'sm_mhz'"),
        (
            "[[allow]]\nusers = [0]\nlowest = {sm_mhz = '600'}\n",
            "sm_mhz is '600'; give whole MHz above 0",
        ),
        ("[[allow]]\nusers = [0]\nlowest = {power_w = nan}\n", "power_w is nan; give W above 0"),
        ("[[before]]\nsm_mhz = 600\n", "gpus: None; give the number of nvidia-smi"),
        ("[[allow\n", "governor.toml: "),
    ],
)
def test_bad_file_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        _read(tmp_path, text)
    assert str(caught.value).startswith(str(tmp_path / "governor.toml"))
    assert "\n" not in str(caught.value)


def test_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "governor.toml"
    file.write_text("")
    file.chmod(0o664)
    with pytest.raises(InvalidInput, match="others than its administrator may write it"):
        read_allow_list(file)
    if os.geteuid() == 0:
        file.chmod(0o644)
        os.chown(file, 64001, 64001)
        with pytest.raises(InvalidInput, match="others than its administrator may write it"):
            read_allow_list(file)


def test_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file or directory; it says who may set which GPU"):
        read_allow_list(tmp_path / "missing.toml")
