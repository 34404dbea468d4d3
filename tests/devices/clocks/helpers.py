"""Keepers of leases, and a check that tests of several actuators share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ekc.devices.clocks import lease_file
from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.limits import ActuatorReference, LimitSetter, NvmlLimits, Settings
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


def make_lease(gpu: str, **changes: Any) -> lease_file.Lease:
    """A lease as a governor leaves it that was killed at 900 MHz and 150 W, with a cap of 280 W before."""
    values: dict[str, Any] = {
        "id": "0",
        "reference": ActuatorReference("nvml", gpu),
        "label": "a label",
        "previous": Settings(power_w=280.0),
        "touched": ("sm_mhz", "power_w"),
        "governor": 4194305,
        "boot": lease_file.read_boot_id(),
        "in_force": Settings(sm_mhz=900, power_w=150.0),
        "possible_caps_w": (150.0, 280.0),
    }
    return lease_file.Lease(**(values | changes))
