"""An oracle that knows every job in advance, and the regret of a governor against it.

The oracle sets the best clocks of each true phase, at no cost, when it begins. Regret is joules beyond the
oracle's, by what the governor was doing at the time. Between two events of the governor one setting is in
force, so the simulated job says exactly what that stretch costs under it and under the oracle's clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.governor.decision import find_best
from ekc.governor.event_records import Applied, Chosen, Event, Shifted, Skipped, Started
from ekc.governor.protocols import Settings
from ekc.governor.request import Policy
from ekc.governor.samples import Values
from ekc.governor.simulation.simulated_run import (
    SimulatedJob,
    SimulatedRun,
    compute_clock_indices,
    compute_costs,
    compute_tables,
)


@dataclass(frozen=True)
class OracleResult:
    """Result of the oracle, relative to the default."""

    saving: float
    """Share of the default's joules."""
    slowdown: float
    """Share of the default's seconds."""
    clocks_mhz: tuple[tuple[int, int], ...]
    """(memory clock, SM clock) of each true phase."""


def choose_oracle_clocks(job: SimulatedJob, policy: Policy) -> OracleResult:
    """The best constant clocks of each true phase; evaluations within a phase run at the same clocks."""
    costs = compute_costs(job)
    seconds = joules = 0.0
    clocks = []
    for time, energy in zip(costs.seconds, costs.joules, strict=True):
        slowdown, saving = time / time[-1, -1] - 1, 1 - energy / energy[-1, -1]
        place = find_best(policy, slowdown.ravel(), saving.ravel())
        memory, gear = np.unravel_index(time.size - 1 if place is None else place, time.shape)
        seconds += float(time[memory, gear])
        joules += float(energy[memory, gear])
        clocks.append((job.card.memory_mhz[memory], job.card.spec.list_clocks_mhz()[gear]))
    default_s, default_j = costs.seconds[:, -1, -1].sum(), costs.joules[:, -1, -1].sum()
    return OracleResult(1 - joules / float(default_j), seconds / float(default_s) - 1, tuple(clocks))


CAUSES = ("measuring", "searching", "choice", "watching", "late")
"""`measuring`: at the default, to learn the job. `searching`: reading candidates. `choice`: under a choice
that is not the oracle's. `watching`: at the default, to check the choice. `late`: a change of the job not
yet noticed."""


def derive_activity(before: str, event: Event) -> str:
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

    def __init__(self, run: SimulatedRun, job: SimulatedJob, best: OracleResult) -> None:
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
        self._activity = derive_activity(self._activity, event)
        if isinstance(event, Started | Shifted):
            self._learned_regime = self._run.get_regime()

    def compute_shares(self) -> dict[str, float]:
        """Regret by cause, as a share of the joules at the default."""
        default_j = float(self._compute_joules(Settings())[-1])
        return {cause: joules / default_j for cause, joules in self._joules.items()}

    def _compute_joules(self, settings: Settings) -> Values:
        """Joules from the start of the job up to each of its stretches, all of them under one setting."""
        if settings not in self._costs:
            memory, gear, cap = compute_clock_indices(self._job.card, settings)
            table = compute_tables(self._job.card, self._job.stages, cap)
            each = (table.stretch * table.watts)[:, memory, gear][self._job.stage_indices] * self._job.seconds
            self._costs[settings] = np.concatenate([[0.0], np.cumsum(each)])
        return self._costs[settings]
