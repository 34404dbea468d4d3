"""From a schedule to a kernel that can be called."""

from __future__ import annotations

from ekc.arguments import format_value
from ekc.codegen.generate import compile_schedule
from ekc.devices.base import Device, ExecutionDevice
from ekc.devices.kernel import Kernel
from ekc.errors import InvalidInput
from ekc.ir.hardware.limits import Limits
from ekc.ir.schedule.schedule import Schedule
from ekc.ir.validate import check_identifier

DEFAULT_ARCH = "sm_80"
"""What is compiled for where nothing is said."""


def compile(
    schedule: Schedule,
    arch: str | None = None,
    limits: Limits | None = None,
    device: Device | None = None,
    name: str | None = None,
) -> Kernel:
    """The kernel of a schedule for `arch` ("sm_80" if nothing is said); needs no GPU. `limits` default to an
    A100's, with the shared memory that `arch` has; whether there are asynchronous copies and products of a
    warp is always up to `arch`. With a `device`, such as `ekc.devices.open("cuda:0")`, both are the device's,
    and one that really runs kernels runs this one when it is called with NumPy arrays. `name` is what its
    functions and files are called instead of the operator's name: two shapes of one operator need two to be
    linked into one program.

    Raises `ScheduleError` for a schedule that breaks a rule or a limit, `InvalidInput` for an arch that
    NVRTC does not know, an arch beside a device, a name that C cannot have.
    """
    if not isinstance(schedule, Schedule):
        raise InvalidInput(
            f"schedule: {format_value(schedule)} is not an ekc.Schedule; ekc.Schedule(op) starts one"
        )
    if arch is not None and not isinstance(arch, str):
        raise InvalidInput(
            f"arch: {format_value(arch)} is not the name of a target; the nearest is {_suggest_arch(arch)!r}"
        )
    if limits is not None and not isinstance(limits, Limits):
        raise InvalidInput(
            f"limits: {format_value(limits)} is not an ekc.ir.hardware.limits.Limits; leave it out"
        )
    if device is not None and not (hasattr(device, "arch") and hasattr(device, "limits")):
        raise InvalidInput(
            f"device: {format_value(device)} is not a device; ekc.devices.open('a100') gives one"
        )
    if name is not None:
        check_identifier("name", name)
    if device is None:
        return Kernel(schedule, compile_schedule(schedule, arch or DEFAULT_ARCH, limits, name))
    if arch is not None or limits is not None:
        raise InvalidInput("device and arch or limits: give one; a device has its own")
    compiled = compile_schedule(schedule, device.arch, device.limits, name)
    return Kernel(schedule, compiled, device if isinstance(device, ExecutionDevice) else None)


def _suggest_arch(arch: object) -> str:
    """ "sm_80" of 80, and of what is no number at all."""
    return f"sm_{arch}" if isinstance(arch, int) and 10 <= arch < 1000 else DEFAULT_ARCH
