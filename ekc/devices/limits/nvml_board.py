"""One GPU as the driver's management library (NVML) tells of it: names, gears, the power cap.

No permission is needed for any of this. NVML has no call that reads a clock lock.
"""

from __future__ import annotations

from typing import Any

from ekc.devices.limits.settable import Gears, Settings
from ekc.devices.nvml.library import explained, nvml, reason
from ekc.errors import ActuatorError
from ekc.forks import hold_forks

_VOLTA, _AMPERE = 5, 7
"""NVML_DEVICE_ARCH: the first whose SM clock, and whose memory clock, can be limited."""
_UNKNOWN = 0xFFFFFFFF


def pci_address(text: str) -> str:
    """As `lspci -D` writes it: four digits of the domain, which some leave out and NVML doubles."""
    parts = text.strip().lower().split(":")
    domain = parts[0] if len(parts) > 2 else ""
    return ":".join((domain[-4:].zfill(4), *parts[-2:]))


class NvmlBoard:
    """Reads one GPU, named by its UUID."""

    def __init__(self, uuid: str) -> None:
        self.library = nvml()
        self.uuid = uuid
        self.handle = explained(uuid, self.library.nvmlDeviceGetHandleByUUID, uuid)
        self.index = int(self._ask("index", "nvmlDeviceGetIndex"))
        self.card = str(self._ask("name", "nvmlDeviceGetName"))
        self.name = f"GPU {self.index} ({self.card})"

    def gears(self) -> Gears:
        """Of the clocks only what this architecture lets be limited; of power, steps of 5 W."""
        arch = self._ask("architecture", "nvmlDeviceGetArchitecture")
        known = arch != _UNKNOWN
        memory = self._clocks("nvmlDeviceGetSupportedMemoryClocks")
        sm = self._clocks("nvmlDeviceGetSupportedGraphicsClocks", memory[-1]) if memory else ()
        return Gears(
            sm_mhz=sm if known and arch >= _VOLTA else (),
            memory_mhz=memory if known and arch >= _AMPERE else (),
            power_w=self._caps(),
        )

    def settings(self) -> Settings:
        """The power cap where it is not the default; clock limits cannot be read and are None."""
        if not self._caps():
            return Settings()
        cap = self._ask("power limit", "nvmlDeviceGetPowerManagementLimit")
        default = self.default_cap_mw()
        return Settings(power_w=None if cap == default else cap / 1000)

    def default_cap_mw(self) -> int:
        """The power cap that the card comes with."""
        return int(self._ask("default power limit", "nvmlDeviceGetPowerManagementDefaultLimit"))

    def bus(self) -> str:
        """PCI address as `lspci -D` writes it."""
        found = self._ask("PCI address", "nvmlDeviceGetPciInfo").busId
        return pci_address(found.decode() if isinstance(found, bytes) else str(found))

    def _caps(self) -> tuple[float, ...]:
        """Up to the default, or to what somebody has set beyond it: no card is let draw more than it did."""
        constraints = self._unless_unsupported("nvmlDeviceGetPowerManagementLimitConstraints")
        if not constraints:
            return ()
        now = self._ask("power limit", "nvmlDeviceGetPowerManagementLimit")
        most = max(now, self.default_cap_mw())
        low, high = (round(min(mw, most) / 1000) for mw in constraints)
        return (*(float(w) for w in range(low, high, 5)), float(high))

    def _clocks(self, function: str, *arguments: Any) -> tuple[int, ...]:
        return tuple(sorted(self._unless_unsupported(function, *arguments) or ()))

    def _unless_unsupported(self, function: str, *arguments: Any) -> Any:
        try:
            with hold_forks():
                return getattr(self.library, function)(self.handle, *arguments)
        except self.library.NVMLError as problem:
            if problem.value == self.library.NVML_ERROR_NOT_SUPPORTED:
                return None
            raise ActuatorError(f"{self.name}, {function}: {reason(problem)}") from problem

    def _ask(self, what: str, function: str) -> Any:
        return explained(f"the {what} of {self.uuid}", getattr(self.library, function), self.handle)
