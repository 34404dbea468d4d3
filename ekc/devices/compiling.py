"""From a schedule to a kernel that can be called."""

from __future__ import annotations

from ekc.codegen.generate import compile_schedule
from ekc.devices.kernel import Kernel
from ekc.ir.limits import Limits
from ekc.ir.schedule import Schedule


def compile(schedule: Schedule, arch: str = "sm_80", limits: Limits | None = None) -> Kernel:
    """The kernel of a schedule for `arch`; needs no GPU. `limits` default to those of any GPU since sm_75.

    Raises `ScheduleError` for a schedule that breaks a rule or a limit, `InvalidInput` for an arch that
    NVRTC does not know.
    """
    return Kernel(schedule, compile_schedule(schedule, arch, limits))
