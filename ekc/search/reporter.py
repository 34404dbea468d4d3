"""Who makes the events of a run, and hands each to those that listen."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ekc.devices.base import Device
from ekc.ir.operator import Operator
from ekc.search.candidate import Candidate
from ekc.search.choice import rank
from ekc.search.events import TuningEvent
from ekc.search.options import Wish

Listener = Callable[[TuningEvent], object]
"""Called with each event, in the thread of the run. One that returns True asks the run to end."""

LOGGER = logging.getLogger("ekc.tune")
"""Takes every event. No handler is installed: that is for the program that imports ekc."""
_DETAILS = ("trial", "metering", "check", "final", "clock")
"""Events that are logged at DEBUG; all else is logged at INFO."""


@dataclass
class Reporter:
    """The events of one run. Without listeners none is made."""

    op: Operator
    device: Device
    wish: Wish
    listeners: tuple[Listener, ...] = ()
    candidates: Sequence[Candidate] = ()
    """The trials so far."""
    stage: str = "prepare"
    round: int = 0
    stopped: bool = False
    """Whether a listener asked the run to end."""

    def enter(self, stage: str, number: int | None = None) -> None:
        """Another stage begins, of round `number` if one is given."""
        self.stage, self.round = stage, self.round if number is None else number
        self.report("stage")

    def report(self, name: str, about: Candidate | None = None, text: str = "") -> None:
        """Make one event and hand it out. What a listener raises ends the run."""
        listeners = (*self.listeners, log_event) if LOGGER.isEnabledFor(_level(name)) else self.listeners
        if not listeners:
            return
        event = self._event(name, about, text)
        for listen in listeners:
            try:
                answer = listen(event)
                self.stopped |= isinstance(answer, bool | np.bool_) and bool(answer)
            except Exception:
                # It is not asked a second time, about the end that it caused.
                self.listeners = tuple(x for x in self.listeners if x is not listen)
                raise

    def _event(self, name: str, about: Candidate | None, text: str) -> TuningEvent:
        working = [c for c in self.candidates if c.ok]
        best, fastest = _leaders(working, self.wish)
        return TuningEvent(
            name=name,
            operator=self.op.name,
            device=self.device.label,
            simulated=self.device.simulated,
            stage=self.stage,
            round=self.round,
            seconds=time.monotonic() - self.wish.asked_s,
            planned=self.wish.trials,
            tried=len(self.candidates),
            failed=len(self.candidates) - len(working),
            metered=sum(c.metered for c in working),
            best=best.trial() if best else None,
            fastest=fastest.trial() if fastest else None,
            trial=about.trial() if about else None,
            text=text,
        )


def _leaders(working: Sequence[Candidate], wish: Wish) -> tuple[Candidate | None, Candidate | None]:
    """(best by the objective among those at most `max_slowdown` slower than the fastest, the fastest)."""
    if not working:
        return None, None
    fastest = min(working, key=lambda c: c.latency_s)
    if wish.objective == "latency":
        return fastest, fastest
    limit_s = fastest.latency_s * (1 + wish.max_slowdown)
    return min((c for c in working if c.latency_s <= limit_s), key=lambda c: rank(c, wish.objective)), fastest


def log_event(event: TuningEvent) -> None:
    """To the logger `ekc.tune`; the record carries the event itself as `record.event`."""
    LOGGER.log(_level(event.name), "%s", event.line(), extra={"event": event})


def _level(name: str) -> int:
    return logging.DEBUG if name in _DETAILS else logging.INFO
