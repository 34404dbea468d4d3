"""An oracle that knows every job in advance: the best clocks of each true phase, set at no cost when it
begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.governor.decision import find_best
from ekc.governor.request import Policy
from ekc.governor.simulation.simulated_run import SimulatedJob, compute_costs


@dataclass(frozen=True)
class OracleResult:
    """Result of the oracle, relative to the default."""

    saving: float
    """Share of the default's joules."""
    slowdown: float
    """Share of the default's seconds."""
    clocks_mhz: tuple[tuple[int, int], ...]
    """(memory clock, SM clock) of each true phase."""


def find_oracle_clocks(job: SimulatedJob, policy: Policy) -> OracleResult:
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
