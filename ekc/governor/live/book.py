"""What happened on one GPU, or on a group of them: events as they were told, and a thinned trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from ekc.governor.events import Event
from ekc.governor.samples import SensorSamples, Values

TRACE_STEP_S = 1.0
"""The trace keeps one mean per this long."""
E = TypeVar("E", bound=Event)


@dataclass
class GovernorLog:
    """Filled while the loop runs, read by report and plot. `simulated` where no real GPU was behind it."""

    name: str
    simulated: bool
    events: list[Event] = field(default_factory=list)
    trace: list[tuple[float, float, float]] = field(default_factory=list)
    """Second on the probe's clock, watts of the board, SM clock [MHz]."""
    problem: str | None = None
    """Why governing ended before the job did."""

    def select_events(self, kind: type[E]) -> list[E]:
        """All events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def add_samples(self, samples: SensorSamples) -> None:
        """Keep the means of each `THIN_S`."""
        if not len(samples):
            return
        rows = np.stack([samples.time_s, samples.power_w, samples.clock_mhz])
        cuts = np.flatnonzero(np.diff(np.floor(samples.time_s / TRACE_STEP_S))) + 1
        for part in np.split(rows, cuts, axis=1):
            at, watts, clock = (_finite_mean(row) for row in part)
            self.trace.append((at, watts, clock))


def _finite_mean(row: Values) -> float:
    good = row[~np.isnan(row)]
    return float(good.mean()) if len(good) else float("nan")
