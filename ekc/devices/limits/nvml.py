"""Limits set through NVML, by a process that may: root, or one with CAP_SYS_ADMIN."""

from __future__ import annotations

from ekc.devices.limits.nvml_board import NvmlBoard
from ekc.devices.limits.settable import Gears, Limit, Reference, Settings
from ekc.devices.nvml.library import explained


class NvmlLimits:
    """The limits of one GPU, set directly."""

    def __init__(self, uuid: str) -> None:
        self._board = NvmlBoard(uuid)
        self._gears = self._board.gears()

    @property
    def label(self) -> str:
        """E.g. "NVML, GPU 0 (NVIDIA A40)"."""
        return f"NVML, {self._board.name}"

    @property
    def reference(self) -> Reference:
        """By UUID, which survives a change of order."""
        return Reference("nvml", self._board.uuid)

    def gears(self) -> Gears:
        """What this card lets be limited."""
        return self._gears

    def settings(self) -> Settings:
        """The power cap; clock limits cannot be read."""
        return self._board.settings()

    def check_permission(self) -> None:
        """Sets the power cap to what it is. Raises `ActuatorError` where setting is not permitted."""
        if not self._gears.power_w:
            return  # A laptop, say: the first clock that is set will tell.
        library, handle = self._board.library, self._board.handle
        now = explained("the power limit", library.nvmlDeviceGetPowerManagementLimit, handle)
        explained(
            f"setting limits of {self._board.name}", library.nvmlDeviceSetPowerManagementLimit, handle, now
        )

    def put(self, limit: Limit, value: float | None) -> None:
        """Clocks as upper limits: from the lowest gear to the value."""
        what = f"setting {_NAMES[limit]} of {self._board.name}"
        library, handle = self._board.library, self._board.handle
        if limit == "power_w":
            milliwatts = self._board.default_cap_mw() if value is None else round(value * 1000)
            explained(what, library.nvmlDeviceSetPowerManagementLimit, handle, milliwatts)
        elif value is None:
            explained(what, getattr(library, _RESET[limit]), handle)
        else:
            lowest = min(getattr(self._gears, limit), default=0)
            explained(what, getattr(library, _LOCK[limit]), handle, min(lowest, int(value)), int(value))


_NAMES = {"sm_mhz": "the SM clock", "memory_mhz": "the memory clock", "power_w": "the power limit"}
_LOCK = {"sm_mhz": "nvmlDeviceSetGpuLockedClocks", "memory_mhz": "nvmlDeviceSetMemoryLockedClocks"}
_RESET = {"sm_mhz": "nvmlDeviceResetGpuLockedClocks", "memory_mhz": "nvmlDeviceResetMemoryLockedClocks"}
