"""Regret of a governor: joules beyond the oracle's, by what the governor was doing at the time.

Used by `compare.py`. Between two events of the governor one setting is in force, so the simulated job says
exactly what that stretch costs under it and under the oracle's clocks.
"""

from __future__ import annotations

import numpy as np

from benchmarks.governor.baselines import OracleResult
from benchmarks.governor.counted_run import CountedRun
from ekc.governor.event_records import Applied, Chosen, Event, Shifted, Skipped, Started
from ekc.governor.protocols import Settings
from ekc.governor.samples import Values
from ekc.governor.simulation.simulated_run import (
    SimulatedJob,
    compute_tables,
    find_clock_indices,
)

CAUSES = ("measuring", "searching", "choice", "watching", "late")
"""`measuring`: at the default, to learn the job. `searching`: reading candidates. `choice`: under a choice
that is not the oracle's. `watching`: at the default, to check the choice. `late`: a change of the job not
yet noticed."""


def find_activity(before: str, event: Event) -> str:
    """The cause to which time after an event is billed; `before`: the cause until the event."""
    if isinstance(event, Started) or (isinstance(event, Shifted) and event.level != "known"):
        return "measuring"
    if isinstance(event, Chosen | Skipped | Shifted):
        return "choice"
    if not isinstance(event, Applied):
        return before
    if before == "measuring":
        return "measuring" if event.settings == Settings() else "searching"
    if before == "searching":
        return before
    return "watching" if event.settings == Settings() else "choice"


class Regret:
    """Adds up the regret of one job from the governor's events while it runs."""

    def __init__(self, run: CountedRun, job: SimulatedJob, best: OracleResult) -> None:
        self._run = run
        self._job = job
        self._begins = np.searchsorted(job.regime, np.arange(job.count_regimes() + 1)).astype(float)
        self._costs: dict[Settings, Values] = {}
        clocks = [Settings(sm_mhz=sm, memory_mhz=memory) for memory, sm in best.clocks_mhz]
        self._least = [self._compute_joules(settings) for settings in clocks]
        self._activity, self._learned_regime = "measuring", 0
        self._at, self._settings = 0.0, Settings()
        self._joules = dict.fromkeys(CAUSES, 0.0)

    def __call__(self, event: Event) -> None:
        """Bill the stretch since the last event."""
        here = self._run.get_progress()
        for regime, least in enumerate(self._least):
            span = np.clip([self._at, here], self._begins[regime], self._begins[regime + 1])
            is_late = regime > self._learned_regime and self._activity in ("choice", "watching")
            cause = "late" if is_late else self._activity
            for costs, sign in ((self._compute_joules(self._settings), 1.0), (least, -1.0)):
                joules = np.interp(span, np.arange(len(costs)), costs)
                self._joules[cause] += sign * float(joules[1] - joules[0])
        self._at, self._settings = here, self._run.settings()
        self._activity = find_activity(self._activity, event)
        if isinstance(event, Started | Shifted):
            self._learned_regime = self._run.get_regime()

    def compute_shares(self) -> dict[str, float]:
        """Regret by cause, as a share of the joules at the default."""
        default_j = float(self._compute_joules(Settings())[-1])
        return {cause: joules / default_j for cause, joules in self._joules.items()}

    def _compute_joules(self, settings: Settings) -> Values:
        """Joules from the start of the job up to each of its stretches, all of them under one setting."""
        if settings not in self._costs:
            memory, gear, cap = find_clock_indices(self._job.card, settings)
            table = compute_tables(self._job.card, self._job.stages, cap)
            each = (table.stretch * table.watts)[:, memory, gear][self._job.stage_indices] * self._job.seconds
            self._costs[settings] = np.concatenate([[0.0], np.cumsum(each)])
        return self._costs[settings]
