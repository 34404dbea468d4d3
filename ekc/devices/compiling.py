"""From a schedule to a kernel that can be called."""

from __future__ import annotations

from ekc.codegen.generate import compile_schedule
from ekc.devices.kernel import Kernel
from ekc.errors import InvalidInput
from ekc.ir.limits import Limits
from ekc.ir.schedule import Schedule


def compile(schedule: Schedule, arch: str = "sm_80", limits: Limits | None = None) -> Kernel:
    """The kernel of a schedule for `arch`; needs no GPU. `limits` default to an A100's.

    Raises `ScheduleError` for a schedule that breaks a rule or a limit, `InvalidInput` for an arch that
    NVRTC does not know.
    """
    if not isinstance(schedule, Schedule):
        raise InvalidInput(f"schedule: {schedule!r} is not an ekc.Schedule; ekc.Schedule(op) starts one")
    return Kernel(schedule, compile_schedule(schedule, arch, limits))
