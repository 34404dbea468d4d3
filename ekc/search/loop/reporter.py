"""Who makes the events of a run, and hands each to those that listen."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ekc.devices.device import Device
from ekc.ir.operator import Operator
from ekc.search.data.candidate import Candidate
from ekc.search.data.events import TuningEvent
from ekc.search.data.options import TuneOptions
from ekc.search.loop.selection import make_rank_key

Listener = Callable[[TuningEvent], object]
"""Called with each event, in the thread of the run. One that returns True asks the run to end."""

LOGGER = logging.getLogger("ekc.tune")
"""Takes every event. No handler is installed: that is for the program that imports ekc."""
_DEBUG_EVENTS = ("trial", "metering", "check", "final", "clock")
"""Events that are logged at DEBUG; all else is logged at INFO."""


@dataclass
class Reporter:
    """The events of one run. Without listeners none is made."""

    op: Operator
    device: Device
    options: TuneOptions
    listeners: tuple[Listener, ...] = ()
    candidates: Sequence[Candidate] = ()
    """The trials so far."""
    stage: str = "prepare"
    round: int = 0
    is_stop_requested: bool = False
    """Whether a listener asked the run to end."""

    def enter_stage(self, stage: str, round_number: int | None = None) -> None:
        """Another stage begins, of round `number` if one is given."""
        self.stage, self.round = stage, self.round if round_number is None else round_number
        self.report("stage")

    def report(self, name: str, candidate: Candidate | None = None, text: str = "") -> None:
        """Make one event and hand it out. What a listener raises ends the run."""
        listeners = (
            (*self.listeners, log_event) if LOGGER.isEnabledFor(_get_log_level(name)) else self.listeners
        )
        if not listeners:
            return
        event = self._make_event(name, candidate, text)
        for listen in listeners:
            try:
                answer = listen(event)
                self.is_stop_requested |= isinstance(answer, bool | np.bool_) and bool(answer)
            except Exception:
                # It is not asked a second time, about the end that it caused.
                self.listeners = tuple(x for x in self.listeners if x is not listen)
                raise

    def _make_event(self, name: str, candidate: Candidate | None, text: str) -> TuningEvent:
        working = [c for c in self.candidates if c.ok]
        best, fastest = _select_leaders(working, self.options)
        return TuningEvent(
            name=name,
            operator=self.op.name,
            device=self.device.label,
            simulated=self.device.simulated,
            stage=self.stage,
            round=self.round,
            seconds=time.monotonic() - self.options.requested_at_s,
            planned=self.options.trials,
            tried=len(self.candidates),
            failed=len(self.candidates) - len(working),
            metered=sum(c.metered for c in working),
            best=best.to_trial() if best else None,
            fastest=fastest.to_trial() if fastest else None,
            trial=candidate.to_trial() if candidate else None,
            text=text,
        )


def _select_leaders(
    candidates: Sequence[Candidate], options: TuneOptions
) -> tuple[Candidate | None, Candidate | None]:
    """(best by the objective among those at most `max_slowdown` slower than the fastest, the fastest)."""
    if not candidates:
        return None, None
    fastest = min(candidates, key=lambda c: c.latency_s)
    if options.objective == "latency":
        return fastest, fastest
    limit_s = fastest.latency_s * (1 + options.max_slowdown)
    return min(
        (c for c in candidates if c.latency_s <= limit_s), key=lambda c: make_rank_key(c, options.objective)
    ), fastest


def log_event(event: TuningEvent) -> None:
    """To the logger `ekc.tune`; the record carries the event itself as `record.event`."""
    LOGGER.log(_get_log_level(event.name), "%s", event.format_line(), extra={"event": event})


def _get_log_level(name: str) -> int:
    return logging.DEBUG if name in _DEBUG_EVENTS else logging.INFO
