"""Every error a user can cause, as one clear line.

A message names the thing, the limit it broke and the nearest legal choice. The command line prints it and
leaves with status 2; a traceback out of ekc is a bug in ekc.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_VALUE = re.compile(r"-?\d+|'.*'|\(.*\)")
"""A nearest choice that is a value (1024, 'k.0', (0, 1)); any other is an instruction ("split first")."""


class EkcError(Exception):
    """Root of the errors that ekc raises on purpose."""


class InvalidInput(EkcError, ValueError):
    """A value from outside (extent, dtype, axis name, array, option) that cannot be used."""


@dataclass(frozen=True)
class Refusal:
    """Why a step or a schedule is not legal. Each of the three kinds below has its own sentence."""

    rule: str
    """The step or rule that refuses: "split", "threads per block"."""
    need: str
    """The number, name or state that the rule is about: "4096", "loop 'z'", "a shared staging in k"."""
    limit: str
    """The limit, the known names, or the fact that breaks the rule: "at most 1024"."""
    nearest: str
    """The nearest legal choice: a value, or an instruction such as "bind before cache_read"."""


class OverLimit(Refusal):
    """A number that is out of range: "threads per block: 4096, at most 1024; use 1024 or fewer"."""

    def __str__(self) -> str:
        ending = " or fewer" if self.limit.startswith("at most ") else ""
        remedy = f"use {self.nearest}{ending}" if _VALUE.fullmatch(self.nearest) else self.nearest
        return f"{self.rule}: {self.need}, {self.limit}; {remedy}"


class UnknownName(Refusal):
    """A name that does not exist: "split: no loop 'z'; loops are i, j, k; nearest is 'k'"."""

    def __str__(self) -> str:
        remedy = f"nearest is {self.nearest}" if _VALUE.fullmatch(self.nearest) else self.nearest
        return f"{self.rule}: no {self.need}; {self.limit}; {remedy}"


class MissingPrecondition(Refusal):
    """A state that the rule needs: "pipeline: loop k has no shared staging; call cache_read(..., at='k')
    first".

    The sentence is `limit`, the fact, and `nearest`, the instruction; `need` says the same as a noun.
    """

    def __str__(self) -> str:
        remedy = f"use {self.nearest}" if _VALUE.fullmatch(self.nearest) else self.nearest
        return f"{self.rule}: {self.limit}; {remedy}"


class ScheduleError(EkcError):
    """A step or a schedule was refused; `refusal` holds rule, need, limit and nearest choice."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class CompileError(EkcError):
    """NVRTC refused the CUDA text; the message shows the source line."""


class ToolchainError(EkcError):
    """A kernel was made, or would have to be made, by another version of the compiler, generator or ekc."""


class KernelFault(EkcError):
    """A compiled kernel broke a rule: a stray access, a race, an element left unwritten."""


class DeviceError(EkcError):
    """A device does not exist here, or cannot do the work."""


class ActuatorError(DeviceError):
    """The limits of a GPU cannot be set, or the GPU is gone; the line says why and suggests a remedy."""


class DriverTrouble(ActuatorError):
    """The driver failed in a call that may succeed later, such as a timeout."""


class GpuUnusable(ActuatorError):
    """The GPU is lost, or the permission is missing: no later try can succeed."""


class RecordError(EkcError):
    """A record file cannot be read or written."""


class NothingLegal(EkcError):
    """A search found no legal schedule; the message holds the histogram of refusals."""
