"""A driver that fails once: at a chosen call, in a chosen way, when it is armed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ekc.devices.cuda.driver import DriverError
from tests.scripted.cuda.driver import ScriptedDriver
from tests.scripted.cuda.forked_worker import CONTEXT, Forked

REASONS = {
    "error": "CUDA_ERROR_UNKNOWN",
    "sticky": "CUDA_ERROR_ILLEGAL_ADDRESS",
    "hang": "hung",
    "kill": "was killed by SIGKILL",
    "exit": "ended with status 3",
    "raise": "ended with status 1",
}
"""Text that the row must contain, by kind of fault."""


@dataclass
class Plan:
    """A planned fault, shared by parent and workers: the call, the kind, whether it is armed, and its
    outcome."""

    method: str
    kind: str
    place: str = "time"
    """Step before which it is armed: the kernel is timed, checked or metered."""
    armed: Any = field(default_factory=lambda: CONTEXT.Value("b", 0))
    fired: Any = field(default_factory=lambda: CONTEXT.Value("b", 0))
    hanging: Any = field(default_factory=lambda: CONTEXT.Value("i", 0))
    """Id of the process that hangs, if one does."""

    def strike(self) -> bool:
        """Whether the fault happens now; it happens once."""
        if not self.armed.value or self.fired.value:
            return False
        self.fired.value = 1
        return True


class FaultyDriver:
    """The scripted driver with the planned fault."""

    def __init__(self, plan: Plan, **script: Any) -> None:
        self._plan, self._inner, self._lost = plan, ScriptedDriver(**script), False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self._lost:
                raise DriverError(name, "CUDA_ERROR_ILLEGAL_ADDRESS", "the context is lost")
            if name == self._plan.method and self._plan.strike():
                self._go_wrong(name)
            return getattr(self._inner, name)(*arguments)

        return call

    def _go_wrong(self, name: str) -> None:
        match self._plan.kind:
            case "error":
                raise DriverError(name, "CUDA_ERROR_UNKNOWN", "unknown error")
            case "sticky":
                self._lost = True
                raise DriverError(
                    name, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"
                )
            case "hang":
                self._plan.hanging.value = os.getpid()
                time.sleep(3600)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "exit":
                os._exit(3)
            case "raise":
                raise MemoryError("no memory on the host")


class Impatient:
    """A connection that waits while its worker works, and not at all once the worker hangs: no test depends
    on the speed of this machine."""

    def __init__(self, connection: Any, hangs: Callable[[], bool]) -> None:
        self._connection, self._hangs = connection, hangs

    def poll(self, seconds: float) -> bool:
        while not self._connection.poll(0.01):
            if self._hangs():
                return False
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def faulty_hand(plan: Plan, index: int, **script: Any) -> Forked:
    """A worker on a faulty driver."""
    hand = Forked(partial(FaultyDriver, plan, **script), index)
    hand.connection = Impatient(hand.connection, lambda: plan.hanging.value == hand.pid)  # type: ignore
    return hand
