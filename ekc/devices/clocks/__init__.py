"""Clock and power limits of a GPU, set through NVML or zeusd, always under a lease
(`ekc.devices.clocks.lease`)."""

from __future__ import annotations

from ekc.devices.clocks.limits import LIMITS, ActuatorReference, Limit, LimitSetter
from ekc.errors import ActuatorError

__all__ = ["LIMITS", "ActuatorReference", "Limit", "LimitSetter", "reopen_actuator"]


def reopen_actuator(reference: ActuatorReference) -> LimitSetter:
    """The actuator that a reference of another process names. Raises `ActuatorError`."""
    if reference.kind == "nvml":
        from ekc.devices.clocks.nvml_limits import NvmlLimits

        return NvmlLimits(reference.gpu)
    if reference.kind == "zeusd":
        from ekc.devices.clocks.zeusd import ZeusdLimits

        return ZeusdLimits(reference.gpu, reference.address)
    raise ActuatorError(f"actuator: no {reference.kind!r}; actuators are nvml and zeusd")
