"""Where a governor's regret comes from: joules beyond the oracle's, by what the governor was doing meanwhile.

For `governor.py`. Between two things that the governor tells one setting is in force, so what that stretch of
the job costs under it, and under the oracle's clocks, is known exactly from the job itself.
"""

from __future__ import annotations

import numpy as np

from ekc.governor.baselines import OracleResult
from ekc.governor.events import Applied, Chosen, Event, Shifted, Skipped, Started
from ekc.governor.protocols import Settings
from ekc.governor.samples import Values
from ekc.governor.simulation.job import SimulatedJob, compute_tables, find_clock_indices
from ekc.governor.simulation.run import SimulatedRun

CAUSES = ("measuring", "searching", "choice", "watching", "late")
"""At the default to learn what a job is; reading candidates; under a choice that is not the oracle's; at the
default to check the choice; and anything done to a job that has become another one unnoticed."""


def doing(before: str, event: Event) -> str:
    """What the governor does from an event on."""
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
    """Adds up one job's regret, from what is told while it runs."""

    def __init__(self, run: SimulatedRun, job: SimulatedJob, best: OracleResult) -> None:
        self._run = run
        self._job = job
        self._begins = np.searchsorted(job.regime, np.arange(job.count_regimes() + 1)).astype(float)
        self._costs: dict[Settings, Values] = {}
        clocks = [Settings(sm_mhz=sm, memory_mhz=memory) for memory, sm in best.clocks_mhz]
        self._least = [self._under(settings) for settings in clocks]
        self._doing, self._learned = "measuring", 0
        self._at, self._settings = 0.0, Settings()
        self._joules = dict.fromkeys(CAUSES, 0.0)

    def __call__(self, event: Event) -> None:
        """Bill what ran since the last one."""
        here = self._run.get_progress()
        for regime, least in enumerate(self._least):
            span = np.clip([self._at, here], self._begins[regime], self._begins[regime + 1])
            late = regime > self._learned and self._doing in ("choice", "watching")
            cause = "late" if late else self._doing
            for costs, sign in ((self._under(self._settings), 1.0), (least, -1.0)):
                told = np.interp(span, np.arange(len(costs)), costs)
                self._joules[cause] += sign * float(told[1] - told[0])
        self._at, self._settings = here, self._run.settings()
        self._doing = doing(self._doing, event)
        if isinstance(event, Started | Shifted):
            self._learned = self._run.get_regime()

    def shares(self) -> dict[str, float]:
        """By cause, of the joules at the default."""
        whole = float(self._under(Settings())[-1])
        return {cause: joules / whole for cause, joules in self._joules.items()}

    def _under(self, settings: Settings) -> Values:
        """Joules of the whole job up to each of its stretches, all of them under one setting."""
        if settings not in self._costs:
            memory, gear, cap = find_clock_indices(self._job.card, settings)
            table = compute_tables(self._job.card, self._job.stages, cap)
            each = (table.stretch * table.watts)[:, memory, gear][self._job.stage_indices] * self._job.seconds
            self._costs[settings] = np.concatenate([[0.0], np.cumsum(each)])
        return self._costs[settings]
