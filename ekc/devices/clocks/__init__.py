"""How limits reach a GPU: through NVML, or zeusd. Nothing is set but under a lease
(`ekc.devices.clocks.lease`)."""

from __future__ import annotations

from ekc.devices.clocks.limits import LIMITS, ActuatorReference, Limit, LimitSetter
from ekc.errors import ActuatorError

__all__ = ["LIMITS", "ActuatorReference", "Limit", "LimitSetter", "reopen_actuator"]


def reopen_actuator(reference: ActuatorReference) -> LimitSetter:
    """The actuator that another process spoke of. Raises `ActuatorError`."""
    if reference.kind == "nvml":
        from ekc.devices.clocks.nvml_limits import NvmlLimits

        return NvmlLimits(reference.gpu)
    if reference.kind == "zeusd":
        from ekc.devices.clocks.zeusd import ZeusdLimits

        return ZeusdLimits(reference.gpu, reference.address)
    raise ActuatorError(f"no actuator is called {reference.kind!r}; there are nvml and zeusd")
