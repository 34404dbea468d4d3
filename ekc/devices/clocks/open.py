"""Actuators: which one can set the limits of a GPU on this machine, and the one that a lease names."""

from __future__ import annotations

import os
from collections.abc import Callable

from ekc.devices.clocks import zeusd
from ekc.devices.clocks.daemon import client
from ekc.devices.clocks.lease_file import find_governor_pid
from ekc.devices.clocks.limits import ActuatorReference, LimitSetter, NvmlLimits
from ekc.errors import ActuatorError, DriverTrouble


def choose_actuator(kind: str, gpu: str) -> LimitSetter:
    """An actuator of a kind; "auto" is NVML where this process may set limits, else ekc's daemon, else a
    running zeusd. Nothing is changed. Raises `ActuatorError` with every reason why there is none;
    `DriverTrouble` where NVML may let this process set limits at a later try.

    The permission is not checked while another process governs the GPU: the check sets the cap that it has
    just read, and the governor may have set another in between. A lease is refused then anyway.
    """
    problems, may_pass = [], False
    is_governed = find_governor_pid(gpu) not in (None, os.getpid())
    for open_limits in _OPENERS.values() if kind == "auto" else (_OPENERS[kind],):
        try:
            limits = open_limits(gpu)
            if not is_governed:
                limits.check_permission()
            return limits
        except ActuatorError as problem:
            problems.append(str(problem))
            may_pass |= isinstance(problem, DriverTrouble) and open_limits is NvmlLimits
    raise (DriverTrouble if may_pass else ActuatorError)("; ".join(problems))


def _open_daemon(gpu: str) -> LimitSetter:
    if (where := client.find_socket()) is None:
        raise ActuatorError(
            f"no daemon of ekc at {client.DEFAULT_SOCKET}, and {client.SOCKET_VARIABLE} names none"
        )
    return client.DaemonLimits(gpu, where)


def _open_zeusd(gpu: str) -> LimitSetter:
    if (where := zeusd.find_daemon_address()) is None:
        raise ActuatorError(
            f"no zeusd at {zeusd.DEFAULT_SOCKET}, and ZEUSD_SOCK_PATH or ZEUSD_HOST_PORT name none"
        )
    return zeusd.ZeusdLimits(gpu, where)


_OPENERS: dict[str, Callable[[str], LimitSetter]] = {
    "nvml": NvmlLimits,
    "daemon": _open_daemon,
    "zeusd": _open_zeusd,
}


def reopen_actuator(reference: ActuatorReference) -> LimitSetter:
    """The actuator that a reference of another process names. Raises `ActuatorError`."""
    if reference.kind == "nvml":
        return NvmlLimits(reference.gpu)
    if reference.kind == "zeusd":
        return zeusd.ZeusdLimits(reference.gpu, reference.address)
    raise ActuatorError(f"actuator: no {reference.kind!r}; actuators are nvml and zeusd")
