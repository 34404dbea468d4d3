"""Who knows every job beforehand: the best clocks of each true phase, set at no cost the moment it begins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ekc.governor import policy as objective
from ekc.governor.policy import Policy
from ekc.governor.simulation.job import SimulatedJob, compute_costs


@dataclass(frozen=True)
class OracleResult:
    """What could be had."""

    saving: float
    slowdown: float
    clocks_mhz: tuple[tuple[int, int], ...]
    """Memory and SM clock of each phase."""


def find_oracle_clocks(job: SimulatedJob, policy: Policy) -> OracleResult:
    """The best constant clocks of each true phase; evaluations within a phase do not get their own."""
    costs = compute_costs(job)
    seconds = joules = 0.0
    clocks = []
    for time, energy in zip(costs.seconds, costs.joules, strict=True):
        slowdown, saving = time / time[-1, -1] - 1, 1 - energy / energy[-1, -1]
        place = objective.find_best(policy, slowdown.ravel(), saving.ravel())
        memory, gear = np.unravel_index(time.size - 1 if place is None else place, time.shape)
        seconds += float(time[memory, gear])
        joules += float(energy[memory, gear])
        clocks.append((job.card.memory_mhz[memory], job.card.spec.list_clocks_mhz()[gear]))
    whole_s, whole_j = costs.seconds[:, -1, -1].sum(), costs.joules[:, -1, -1].sum()
    return OracleResult(1 - joules / float(whole_j), seconds / float(whole_s) - 1, tuple(clocks))
