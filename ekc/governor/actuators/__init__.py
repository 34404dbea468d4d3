"""How limits reach a GPU: NVML, zeusd, or not at all (advise)."""

from __future__ import annotations

from ekc.errors import ActuatorError
from ekc.governor.actuators.settable import LIMITS, Limit, Reference, Settable

__all__ = ["LIMITS", "Limit", "Reference", "Settable", "reopened"]


def reopened(reference: Reference) -> Settable:
    """The actuator that another process spoke of. Raises `ActuatorError`."""
    if reference.kind == "nvml":
        from ekc.governor.actuators.nvml import NvmlLimits

        return NvmlLimits(reference.gpu)
    if reference.kind == "zeusd":
        from ekc.governor.actuators.zeusd import ZeusdLimits

        return ZeusdLimits(reference.gpu, reference.address)
    raise ActuatorError(f"no actuator is called {reference.kind!r}; there are nvml and zeusd")
