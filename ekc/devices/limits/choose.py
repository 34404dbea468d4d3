"""Which actuator can set the limits of a GPU here."""

from __future__ import annotations

from ekc.devices.limits import zeusd
from ekc.devices.limits.nvml import NvmlLimits
from ekc.devices.limits.settable import Settable
from ekc.errors import ActuatorError


def chosen(kind: str, gpu: str) -> Settable:
    """Of that kind; with "auto" NVML where we may, else zeusd where it runs. Nothing is changed by asking.

    Raises `ActuatorError` with every reason why none can.
    """
    reasons = []
    for opened in {"auto": (_nvml, _zeusd), "nvml": (_nvml,), "zeusd": (_zeusd,)}[kind]:
        try:
            settable = opened(gpu)
            settable.check_permission()
            return settable
        except ActuatorError as problem:
            reasons.append(str(problem))
    raise ActuatorError("; ".join(reasons))


def _nvml(gpu: str) -> Settable:
    return NvmlLimits(gpu)


def _zeusd(gpu: str) -> Settable:
    where = zeusd.address()
    if where is None:
        raise ActuatorError(f"no zeusd at {zeusd.SOCKET}, and ZEUSD_SOCK_PATH or ZEUSD_HOST_PORT name none")
    return zeusd.ZeusdLimits(gpu, where)
