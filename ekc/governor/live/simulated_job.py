"""A simulated job to govern, and the truth of it: its savings and its best static limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.errors import InvalidInput
from ekc.governor.decision import find_static
from ekc.governor.event_records import format_settings
from ekc.governor.live.group import GovernedUnit
from ekc.governor.protocols import Settings
from ekc.governor.request import Policy
from ekc.governor.simulation.card import SIMULATED_CARDS
from ekc.governor.simulation.random_jobs import JOB_KINDS, sample_job
from ekc.governor.simulation.simulated_run import SimulatedJob, SimulatedRun, compute_costs


@dataclass(frozen=True)
class SimulatedTruth:
    """True figures; savings and slowdowns are shares of the joules and seconds at the default."""

    saved_j: float
    saving: float
    static_settings: Settings
    """The best upper limit of the SM clock for the whole job."""
    static_saving: float
    static_slowdown: float

    def format_rows(self) -> list[tuple[str, str]]:
        """Rows of the report: name and text."""
        static = f"{format_settings(self.static_settings)}: {self.static_saving:.1%} saved"
        return [
            ("simulated truth", f"{self.saved_j:,.0f} J saved net, {self.saving:.1%}"),
            ("", f"best static: {static}, {self.static_slowdown:+z.1%} time"),
        ]


def find_truth(run: SimulatedRun, policy: Policy) -> SimulatedTruth:
    """The truth of a run that has ended."""
    costs = compute_costs(run.job)
    default_j = float(costs.joules[:, -1, -1].sum())
    static = find_true_static(run.job, policy)
    return SimulatedTruth(default_j - run.true_j, 1 - run.true_j / default_j, *static)


def find_true_static(job: SimulatedJob, policy: Policy) -> tuple[Settings, float, float]:
    """(settings, saving, slowdown) of the best SM clock for the whole job, at the default memory clock."""
    costs = compute_costs(job)
    seconds, joules = costs.seconds[:, -1, :].sum(axis=0), costs.joules[:, -1, :].sum(axis=0)
    # No step is slower in a pause.
    is_paused = np.array([stage.is_paused for stage in job.stages])[job.stage_indices]
    worked_s = float(seconds[-1]) - float(job.seconds[is_paused].sum())
    slowdown, saving = (seconds - seconds[-1]) / worked_s, 1 - joules / joules[-1]
    place = find_static(policy, slowdown, saving, float(joules[-1]), float(seconds[-1]))
    if place is None or place == len(seconds) - 1:
        return Settings(), 0.0, 0.0
    clock = int(job.card.list_sm_clocks_mhz()[place])
    return Settings(sm_mhz=clock), float(saving[place]), float(slowdown[place])


def make_simulated_unit(kind: str, card: str, seed: int, minutes: float) -> GovernedUnit:
    """A random job of a kind that takes `minutes` at default clocks. Raises `InvalidInput`."""
    if kind not in JOB_KINDS:
        raise InvalidInput(f"--simulate: no kind {kind!r}; kinds are {', '.join(JOB_KINDS)}")
    if card not in SIMULATED_CARDS:
        raise InvalidInput(f"--card: no card {card!r}; cards are {', '.join(SIMULATED_CARDS)}")
    if not 1 <= minutes <= 24 * 60:
        raise InvalidInput(f"--minutes: {minutes:g}, from 1 to 1440")
    run = SimulatedRun(sample_job(seed, kind, card, 60 * minutes), seed)
    return GovernedUnit(f"{kind} job on {card} (simulated)", run, run)
