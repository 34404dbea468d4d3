"""Keepers of leases, and a check that tests of several actuators share."""

from __future__ import annotations

from collections.abc import Callable

from ekc.devices.clocks import lease_file
from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.limits import LimitSetter, Settings
from ekc.devices.clocks.nvml_limits import NvmlLimits
from tests.scripted.nvml.boards import ScriptedBoards


def check_all_limits(settable: LimitSetter, boards: ScriptedBoards) -> None:
    settable.set_limit("sm_mhz", 1410)
    settable.set_limit("memory_mhz", 5001)
    settable.set_limit("power_w", 200.0)
    assert boards.read_limits(0) == ([300, 1410], [405, 5001], 200_000)
    assert boards.read_limits(1) == (None, None, 280_000)
    assert settable.settings() == Settings(power_w=200.0)
    for limit in ("sm_mhz", "memory_mhz", "power_w"):
        settable.set_limit(limit, None)
    assert boards.read_limits(0) == (None, None, 350_000)
    assert settable.settings() == Settings()


def make_keeper(
    boards: ScriptedBoards, before: Settings | None = None, on_message: Callable[[str], object] = str
) -> LeaseKeeper:
    """A keeper of the lease of the first board."""
    return LeaseKeeper([NvmlLimits(boards.get_uuid())], before, on_message)


def read_lease(boards: ScriptedBoards) -> lease_file.Lease | None:
    """The lease of the first board."""
    return lease_file.read_lease(lease_file.make_lease_path(boards.get_uuid()))
