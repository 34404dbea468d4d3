"""The reporter makes the events of a run and calls its listeners, with the logger `ekc.tune` among them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ekc.devices.device import Device
from ekc.ir.operator import Operator
from ekc.search.data.candidate import Candidate
from ekc.search.data.events import EventListener, TuningEvent
from ekc.search.data.options import TuneOptions

LOGGER = logging.getLogger("ekc.tune")
"""Logger of all events. ekc installs no handler: that is left to the program that imports it."""
_DEBUG_EVENTS = ("trial", "metering", "check", "final", "clock")
"""Events that are logged at DEBUG; all others are logged at INFO."""


@dataclass(frozen=True)
class LayerLabel:
    """The layer of a model's run that a reporter belongs to."""

    layer: str
    model: str
    planned: int
    """Trials of all layers, at most."""
    candidates: Sequence[Sequence[Candidate]]
    """Candidates of each layer so far, of this one too."""


@dataclass
class Reporter:
    """Makes the events of one run. Without listeners it makes none."""

    op: Operator
    device: Device
    options: TuneOptions
    listeners: tuple[EventListener, ...] = ()
    candidates: Sequence[Candidate] = ()
    stage: str = "prepare"
    """Current stage, one of `data.events.STAGES`."""
    round: int = 0
    """Current round, from 1; 0 before the first."""
    label: LayerLabel | None = None
    """None in the run of one operator."""
    is_stop_requested: bool = False
    """Whether a listener asked the run to end."""
    _start: tuple[float, int] = 0.0, 0
    """Seconds since the run was requested, and trials, where the measuring of round one began. Breeding it
    takes much longer than breeding others."""

    def enter_stage(self, stage: str, round_number: int | None = None) -> None:
        """Enter another stage, of another round if a number is given, and report it."""
        if (stage, round_number) == ("measure", 1):
            self._start = self._elapsed_s, len(self._tried)
        self.stage, self.round = stage, self.round if round_number is None else round_number
        self.report("stage")

    def report(self, name: str, candidate: Candidate | None = None, text: str = "") -> None:
        """Make one event and call the listeners. An exception of a listener ends the run."""
        is_logged = LOGGER.isEnabledFor(_get_log_level(name))
        listeners = (*self.listeners, log_event) if is_logged else self.listeners
        if not listeners:
            return
        event = self._make_event(name, candidate, text)
        for listen in listeners:
            try:
                answer = listen(event)
                self.is_stop_requested |= isinstance(answer, bool | np.bool_) and bool(answer)
            except Exception:
                # Do not call it again with the "error" event that it causes.
                self.listeners = tuple(x for x in self.listeners if x is not listen)
                raise

    def _make_event(self, name: str, candidate: Candidate | None, text: str) -> TuningEvent:
        own = [c for c in self.candidates if c.ok]
        best, fastest = self.options.rule.select_winners(own) if own else (None, None)
        label, tried = self.label, self._tried
        working = [c for c in tried if c.ok]
        planned = label.planned if label else self.options.trials
        return TuningEvent(
            name=name,
            operator=self.op.name,
            device=self.device.label,
            simulated=self.device.simulated,
            stage=self.stage,
            round=self.round,
            seconds=self._elapsed_s,
            planned=planned,
            tried=len(tried),
            failed=len(tried) - len(working),
            metered=sum(c.metered for c in working),
            seconds_left=self._estimate_seconds_left(len(tried), planned),
            best=best.to_trial() if best else None,
            fastest=fastest.to_trial() if fastest else None,
            trial=candidate.to_trial() if candidate else None,
            text=text,
            layer=label.layer if label else "",
            model=label.model if label else "",
        )

    @property
    def _tried(self) -> list[Candidate]:
        """The candidates so far of the run, or of all layers."""
        return [c for some in (self.label.candidates if self.label else (self.candidates,)) for c in some]

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self.options.requested_at_s

    def _estimate_seconds_left(self, tried: int, planned: int) -> float | None:
        """Estimate the seconds of the trials left, at the rate since measuring began."""
        elapsed_s, (start_s, before) = self._elapsed_s, self._start
        if self.round < 2 or tried == before:
            return None
        left_s = (elapsed_s - start_s) / (tried - before) * (planned - tried)
        budget_s = self.options.time_budget_s
        return left_s if budget_s is None else max(min(left_s, budget_s - elapsed_s), 0.0)


def log_event(event: TuningEvent) -> None:
    """Log an event at `ekc.tune`. The log record has the event as `record.event`."""
    LOGGER.log(_get_log_level(event.name), "%s", event.format_line(), extra={"event": event})


def _get_log_level(name: str) -> int:
    return logging.DEBUG if name in _DEBUG_EVENTS else logging.INFO
