"""Leases that an earlier version of ekc wrote: found and restored by today's `ekc govern --restore`."""

from __future__ import annotations

import os
import socket

from ekc.devices.clocks.lease_file import find_governor_pid, make_lease_path
from ekc.devices.clocks.restore import SETTINGS_RESTORED, restore_all
from tests.scripted.nvml.boards import ScriptedBoards

LEASE = """{"version": 1, "id": "5f0c", "reference": {"kind": "nvml", "gpu": "%s", "address": ""},
"label": "NVML, GPU 0 (Scripted GPU)", "previous": {"sm_mhz": 1500, "memory_mhz": null, "power_w": 280.0},
"touched": ["sm_mhz", "power_w"], "governor": 4194305, "boot": ""}"""
"""The text of a lease file of format 1, as ekc 0.1 writes it before a clock is set."""


def test_lease_of_an_earlier_version_is_restored(here: ScriptedBoards) -> None:
    gpu = here.get_uuid()
    here.set_state(0, sm_lock=[300, 900], limit_mw=150_000)
    make_lease_path(gpu).write_text(LEASE % gpu)
    (found,) = restore_all()
    assert str(found) == f"NVML, GPU 0 (Scripted GPU): {SETTINGS_RESTORED}"
    assert here.read_limits() == ([300, 1500], None, 280_000)
    assert not make_lease_path(gpu).exists()


def test_governor_of_an_earlier_version_is_found_by_its_socket(here: ScriptedBoards) -> None:
    """The name of the socket is fixed: a governor that runs may be of another version."""
    gpu = here.get_uuid()
    make_lease_path(gpu).write_text(LEASE % gpu)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        lock.bind(f"\0ekc-governor-{gpu}")
        lock.listen(8)
        assert find_governor_pid(gpu) == os.getpid()
        (found,) = restore_all()
    assert found.problem == f"governed by process {os.getpid()}; end that one instead"
    assert make_lease_path(gpu).exists()
