"""A simulated training job: its stages in the order in which they come.

A stage: the stretch of a training iteration that one kind of kernel fills, and its answer to clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.governor.protocols import Settings
from ekc.governor.simulation.card import SimulatedCard

Values = NDArray[np.float64]
PAUSED_POWER_SHARE = 0.6
"""Of the constant power: what a board draws when nothing has run for a while (estimate)."""


@dataclass(frozen=True)
class JobStage:
    """Kernels of one kind, or the host alone (`sm_util` 0), at the top clocks without a power cap."""

    name: str
    core_share: float
    """What follows the SM clock; the rest follows the memory clock (`facts.Kernel`)."""
    sharpness: float
    power_share: float
    """Of the board's power limit, drawn."""
    sm_util: float
    memory_util: float
    pipe_util: float
    """Of the busiest arithmetic pipe, 0 to 100."""
    tensor_share: float
    """Share of the arithmetic that runs on tensor cores."""
    is_paused: bool = False
    """Whether the whole job waits, long enough for the board to rest."""


@dataclass(frozen=True)
class StageTables:
    """Stages under every limit: arrays of (stage, memory clock, SM clock)."""

    stretch: Values
    """Seconds over those at the top clocks without a cap."""
    watts: Values
    clock_mhz: Values
    """The clock that the power cap leaves."""


def compute_tables(card: SimulatedCard, stages: tuple[JobStage, ...], cap_w: float) -> StageTables:
    """What every stage takes and draws at every clock limit under one power cap."""
    free = [_compute_uncapped(card, stage) for stage in stages]
    stretch = np.array([s for s, _ in free])
    watts = np.array([w for _, w in free])
    within = np.maximum.accumulate(watts <= cap_w, axis=2)
    # The highest clock not above the limit that keeps the cap; the lowest one where none does.
    places = np.where(watts <= cap_w, np.arange(watts.shape[2]), 0)
    held = np.where(within, np.maximum.accumulate(places, axis=2), 0)
    return StageTables(
        stretch=np.take_along_axis(stretch, held, axis=2),
        watts=np.take_along_axis(watts, held, axis=2),
        clock_mhz=card.list_sm_clocks_mhz()[held],
    )


def _compute_uncapped(card: SimulatedCard, stage: JobStage) -> tuple[Values, Values]:
    """Stretch and watts by memory clock and SM clock."""
    resting = card.compute_resting_w()
    if stage.is_paused:
        return np.ones_like(resting), np.full_like(resting, PAUSED_POWER_SHARE * card.spec.power.constant_w)
    if stage.sm_util == 0:
        return np.ones_like(resting), resting
    slower = card.list_sm_clocks_mhz()[-1] / card.list_sm_clocks_mhz()[None, :]
    starved = card.memory_mhz[-1] / np.array(card.memory_mhz, float)[:, None]
    p = stage.sharpness
    stretch = (stage.core_share * slower**p + (1 - stage.core_share) * starved**p) ** (1 / p)
    working = resting + card.compute_clock_tree_w()[None, :]
    moving = (
        stage.memory_util / 100 * card.spec.memory_bytes_per_s * card.spec.power.memory_pj_per_byte * 1e-12
    )
    computing = max(0.0, stage.power_share * card.spec.power.tdp_w - working[-1, -1] - moving)
    return stretch, working + (computing * card.compute_voltage_squared()[None, :] + moving) / stretch


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
