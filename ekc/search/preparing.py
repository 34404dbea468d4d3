"""The job that goes to an executor: what is done about a schedule before a device sees it.

It is a pure function of plain values: it may run in another thread, in another process, or not ahead at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from ekc.errors import EkcError
from ekc.ir.limits import Limits
from ekc.ir.schedule import Schedule

Count = Callable[[CompiledKernel], Any]


def compile_text(schedule: str, arch: str, limits: Limits) -> CompiledKernel:
    """Compile a schedule given as JSON."""
    return compile_schedule(Schedule.from_json(schedule), arch, limits)


def prepare(schedule: str, arch: str, limits: Limits, count: Count | None) -> tuple[CompiledKernel, Any]:
    """The kernel of a schedule given as JSON, and what its device would `count` of it. None where that is not
    asked for, or fails: the device then counts when it times the kernel, and says why it cannot."""
    kernel = compile_text(schedule, arch, limits)
    try:
        return kernel, count(kernel) if count else None
    except EkcError:
        return kernel, None
