"""Limits set through NVML, by a process that may: root, or one with CAP_SYS_ADMIN."""

from __future__ import annotations

from ekc.devices.limits.nvml_board import NvmlLimitReader
from ekc.devices.limits.settable import ActuatorReference, Gears, Limit, Settings
from ekc.devices.nvml.library import call_nvml


class NvmlLimits:
    """The limits of one GPU, set directly."""

    def __init__(self, uuid: str) -> None:
        self._board = NvmlLimitReader(uuid)
        self._gears = self._board.gears()

    @property
    def label(self) -> str:
        """E.g. "NVML, GPU 0 (NVIDIA A40)"."""
        return f"NVML, {self._board.name}"

    @property
    def reference(self) -> ActuatorReference:
        """By UUID, which survives a change of order."""
        return ActuatorReference("nvml", self._board.uuid)

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
        now = call_nvml("the power limit", library.nvmlDeviceGetPowerManagementLimit, handle)
        call_nvml(
            f"setting limits of {self._board.name}", library.nvmlDeviceSetPowerManagementLimit, handle, now
        )

    def set_limit(self, limit: Limit, value: float | None) -> None:
        """Clocks as upper limits: from the lowest gear to the value."""
        what = f"setting {_LIMIT_NAMES[limit]} of {self._board.name}"
        library, handle = self._board.library, self._board.handle
        if limit == "power_w":
            milliwatts = self._board.read_default_cap_mw() if value is None else round(value * 1000)
            call_nvml(what, library.nvmlDeviceSetPowerManagementLimit, handle, milliwatts)
        elif value is None:
            call_nvml(what, getattr(library, _RESET_FUNCTIONS[limit]), handle)
        else:
            lowest = min(getattr(self._gears, limit), default=0)
            call_nvml(
                what, getattr(library, _LOCK_FUNCTIONS[limit]), handle, min(lowest, int(value)), int(value)
            )


_LIMIT_NAMES = {"sm_mhz": "the SM clock", "memory_mhz": "the memory clock", "power_w": "the power limit"}
_LOCK_FUNCTIONS = {"sm_mhz": "nvmlDeviceSetGpuLockedClocks", "memory_mhz": "nvmlDeviceSetMemoryLockedClocks"}
_RESET_FUNCTIONS = {
    "sm_mhz": "nvmlDeviceResetGpuLockedClocks",
    "memory_mhz": "nvmlDeviceResetMemoryLockedClocks",
}
