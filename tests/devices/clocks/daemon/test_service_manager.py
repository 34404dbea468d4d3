"""Unit files that systemd accepts, and what the daemon says to its service manager."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from ekc.devices.clocks.daemon.server import (
    format_unit,
    notify,
    read_watchdog_interval_s,
    take_passed_socket,
)

LARGEST_EXPOSURE = 30
"""Tenths of the exposure level of systemd-analyze, from 0 (closed) to 100 (open)."""


@pytest.fixture
def units(tmp_path: Path) -> list[Path]:
    files = [tmp_path / f"ekc-governor.{kind}" for kind in ("service", "socket")]
    for kind, file in zip(("service", "socket"), files, strict=True):
        file.write_text(format_unit(kind, Path("/run/ekc/governor.sock"), Path("/etc/ekc/governor.toml")))
    return files


def _analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed here")
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, timeout=60)


def test_systemd_accepts_the_units(units: list[Path]) -> None:
    done = _analyze("verify", "--man=no", *units)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_refuses_a_unit_with_a_mistake(units: list[Path]) -> None:
    """The check above can fail."""
    units[0].write_text(units[0].read_text().replace("Type=notify", "Type=notified"))
    assert "Failed to parse service type" in _analyze("verify", "--man=no", *units).stderr


def test_service_has_few_rights(units: list[Path]) -> None:
    done = _analyze("security", "--offline=yes", f"--threshold={LARGEST_EXPOSURE}", units[0])
    assert done.returncode == 0, done.stdout


def test_units_have_no_placeholder_left(units: list[Path]) -> None:
    for file in units:
        assert not re.search("@[A-Z]+@", file.read_text())
        assert "/run/ekc/governor.sock" in file.read_text()


@pytest.mark.parametrize("is_abstract", [False, True])
def test_states_reach_the_service_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_abstract: bool
) -> None:
    name = f"ekc-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}" if is_abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if is_abstract else name)
        notify("READY=1", "STATUS=works")
        assert manager.recv(100) == b"READY=1\nSTATUS=works"
    notify("STOPPING=1")  # The manager has gone: nothing happens.


def test_variables_of_another_process_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    assert read_watchdog_interval_s() == 3.0
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert read_watchdog_interval_s() is None
    monkeypatch.setenv("LISTEN_FDS", "1")
    monkeypatch.setenv("LISTEN_PID", "1")
    assert take_passed_socket() is None
