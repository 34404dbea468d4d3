"""Every error a user can cause, as one clear line.

A message names the thing, the limit it broke and the nearest legal choice. The command line
prints it and leaves with status 2; a traceback out of ekc is a bug in ekc.
"""

from __future__ import annotations

from dataclasses import dataclass


class EkcError(Exception):
    """Root of the errors that ekc raises on purpose."""


class InvalidInput(EkcError, ValueError):
    """A value from outside (extent, dtype, axis name, array, option) that cannot be used."""


@dataclass(frozen=True)
class Refusal:
    """Why a step or a schedule is not legal."""

    rule: str
    need: str
    limit: str
    nearest: str

    def __str__(self) -> str:
        return (
            f"{self.rule}: needs {self.need}, the limit is {self.limit}; nearest legal choice: {self.nearest}"
        )


class ScheduleError(EkcError):
    """A step or a schedule was refused; `refusal` holds rule, need, limit and nearest choice."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class CompileError(EkcError):
    """NVRTC refused the CUDA text; the message shows the source line."""


class ToolchainError(EkcError):
    """Another compiler, generator or ekc than that of this process made a kernel, or would have to."""


class KernelFault(EkcError):
    """A compiled kernel did what no kernel may: a stray access, a race, an element left unwritten."""


class DeviceError(EkcError):
    """A device does not exist here, or cannot do what was asked of it."""


class ActuatorError(DeviceError):
    """The limits of a GPU cannot be set, or the GPU is gone; the line says why and what would help."""


class RecordError(EkcError):
    """A record file cannot be read or written."""


class NothingLegal(EkcError):
    """A search found no legal schedule; the message holds the histogram of refusals."""
