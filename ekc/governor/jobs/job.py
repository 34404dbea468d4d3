"""A simulated training job: its stages in the order in which they come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.governor.jobs.card import SimulatedCard
from ekc.governor.jobs.stage import JobStage, compute_tables
from ekc.governor.protocols import Settings

Values = NDArray[np.float64]


@dataclass(frozen=True)
class SimulatedJob:
    """Everything that will run; drawn once, the same whatever the clocks.

    The i-th stretch is `seconds[i]` of stage `stage[i]` at the top clocks without a power cap.
    """

    name: str
    kind: str
    card: SimulatedCard
    stages: tuple[JobStage, ...]
    stage_indices: NDArray[np.int32]
    seconds: Values
    iteration: NDArray[np.int32]
    """Number of the training iteration that a stretch belongs to, rising."""
    regime: NDArray[np.int16]
    """Which true phase of the job a stretch belongs to; a job without a change has one."""
    swing_w: float = 0.0
    """Power that comes and goes over the hour, whatever the clocks: room and other cards (`world.py`)."""

    def count_regimes(self) -> int:
        """How many true phases there are."""
        return int(self.regime.max()) + 1


def find_clock_indices(card: SimulatedCard, settings: Settings) -> tuple[int, int, float]:
    """Places of the memory clock and the SM clock in force, and the power cap."""
    clocks = card.list_sm_clocks_mhz()
    limit = clocks[-1] if settings.sm_mhz is None else settings.sm_mhz
    gear = max(0, int(np.searchsorted(clocks, limit, side="right")) - 1)
    top = card.memory_mhz[-1]
    memory = np.abs(np.array(card.memory_mhz) - (settings.memory_mhz or top)).argmin()
    return int(memory), gear, settings.power_w or card.spec.power.tdp_w


@dataclass(frozen=True)
class PhaseCosts:
    """Seconds and joules of whole phases at every limit: arrays of (regime, memory clock, SM clock)."""

    seconds: Values
    joules: Values


def compute_costs(job: SimulatedJob, cap_w: float | None = None) -> PhaseCosts:
    """What each phase of the job costs under each constant limit; exact, but for `swing_w`, left out."""
    table = compute_tables(job.card, job.stages, cap_w or job.card.spec.power.tdp_w)
    work = np.zeros((job.count_regimes(), len(job.stages)))
    np.add.at(work, (job.regime, job.stage_indices), job.seconds)
    seconds = np.einsum("rs,smg->rmg", work, table.stretch)
    joules = np.einsum("rs,smg->rmg", work, table.stretch * table.watts)
    return PhaseCosts(seconds, joules)
