"""Root's record of the power caps of boards without a governor, made by each `ekc govern --restore` of root.

It is a bound for leases of other users: a cap that an administrator set is not raised because a forged lease
says that it was higher before. Clock limits cannot be read, so there is no such record of them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection

from ekc.devices.clocks.lease_file import find_governor, find_lease_folder, read_boot_id, replace_file
from ekc.devices.clocks.nvml_limits import NvmlLimitReader
from ekc.devices.nvml.library import list_uuids
from ekc.errors import ActuatorError

_NAME = "power-caps"


def read_recorded_cap_w(gpu: str) -> float | None:
    """Power cap of a board when it last had no governor, in watts; None where there is no record since the
    machine was started."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((find_lease_folder() / _NAME).read_text())
        if found["boot"] == read_boot_id():
            return float(found["caps_w"][gpu])
    return None


def record_caps(leased: Collection[str]) -> None:
    """Record the caps of the boards that have no governor and are not `leased`; the record of others
    stays. Nothing where there is no driver. Raises `OSError`."""
    caps_w: dict[str, float] = {}
    try:
        for gpu in list_uuids().values():
            is_free = gpu not in leased and find_governor(gpu) is None
            cap_w = NvmlLimitReader(gpu).read_cap_w() if is_free else read_recorded_cap_w(gpu)
            if cap_w is not None:
                caps_w[gpu] = cap_w
    except ActuatorError:
        return  # No driver here, or a lost GPU: whatever set limits could not have done so either.
    text = json.dumps({"boot": read_boot_id(), "caps_w": caps_w})
    replace_file(find_lease_folder() / _NAME, text)
