"""A simulated training job: the stages of its iterations, and their time and power under every limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.governor.protocols import Settings
from ekc.governor.samples import Values
from ekc.governor.simulation.card import SimulatedCard

PAUSED_POWER_SHARE = 0.6
"""Share of the constant power that a board draws after a while without work (estimate)."""


@dataclass(frozen=True)
class JobStage:
    """A stretch of an iteration with kernels of one kind, or the host alone (`sm_util` 0), at the top clocks
    without a power cap."""

    name: str
    core_share: float
    """Share of the time that follows the SM clock; the rest follows the memory clock (`KernelClockFit`)."""
    sharpness: float
    """Sharpness of the bend between the two (`KernelClockFit`)."""
    power_share: float
    """Power drawn, as a share of the board's power limit."""
    sm_util: float
    """SM use in percent."""
    memory_util: float
    """Memory use in percent."""
    pipe_util: float
    """Use of the busiest arithmetic pipe in percent."""
    tensor_share: float
    """Share of the arithmetic on tensor cores, 0 to 1."""
    is_paused: bool = False
    """Whether the job waits so long that the board's power falls."""


@dataclass(frozen=True)
class StageTables:
    """Time and power of stages under every limit: arrays of (stage, memory clock, SM clock)."""

    stretch: Values
    """Seconds over the seconds at the top clocks without a cap."""
    watts: Values
    clock_mhz: Values
    """SM clock under the power cap."""


def compute_tables(card: SimulatedCard, stages: tuple[JobStage, ...], cap_w: float) -> StageTables:
    """Time and power of every stage at every clock limit under one power cap."""
    uncapped = [_compute_uncapped(card, stage) for stage in stages]
    stretch = np.array([s for s, _ in uncapped])
    watts = np.array([w for _, w in uncapped])
    is_within = np.maximum.accumulate(watts <= cap_w, axis=2)
    # The highest clock within limit and cap; the lowest one where none is within the cap.
    places = np.where(watts <= cap_w, np.arange(watts.shape[2]), 0)
    gear = np.where(is_within, np.maximum.accumulate(places, axis=2), 0)
    stretch, watts = (np.take_along_axis(table, gear, axis=2) for table in (stretch, watts))
    return StageTables(stretch, watts, card.list_sm_clocks_mhz()[gear])


def _compute_uncapped(card: SimulatedCard, stage: JobStage) -> tuple[Values, Values]:
    """(stretch, watts) by memory clock and SM clock, without a cap."""
    resting = card.compute_resting_w()
    if stage.is_paused:
        return np.ones_like(resting), np.full_like(resting, PAUSED_POWER_SHARE * card.spec.power.constant_w)
    if stage.sm_util == 0:
        return np.ones_like(resting), resting
    sm_ratio = card.list_sm_clocks_mhz()[-1] / card.list_sm_clocks_mhz()[None, :]
    memory_ratio = card.memory_mhz[-1] / np.array(card.memory_mhz, float)[:, None]
    p = stage.sharpness
    stretch = (stage.core_share * sm_ratio**p + (1 - stage.core_share) * memory_ratio**p) ** (1 / p)
    awake_w, spec = resting + card.clock_tree_w[None, :], card.spec
    memory_w = stage.memory_util / 100 * spec.memory_bytes_per_s * spec.power.memory_pj_per_byte * 1e-12
    core_w = max(0.0, stage.power_share * spec.power.tdp_w - awake_w[-1, -1] - memory_w)
    return stretch, awake_w + (core_w * card.voltage_squared[None, :] + memory_w) / stretch


@dataclass(frozen=True)
class SimulatedJob:
    """All work of a job at any clock. Stretch i is `seconds[i]` of stage `stage_indices[i]` at the top clocks
    without a power cap."""

    name: str
    kind: str
    card: SimulatedCard
    stages: tuple[JobStage, ...]
    stage_indices: NDArray[np.int32]
    seconds: Values
    iteration: NDArray[np.int32]
    """Number of the training iteration of each stretch, ascending."""
    regime: NDArray[np.int16]
    """Number of the true phase of each stretch; a job without a change has one phase."""
    swing_w: float = 0.0
    """Amplitude of a slow swing of power at all clocks, from the room and other cards (`SWING_PERIOD_S`)."""

    def count_regimes(self) -> int:
        """Number of true phases."""
        return int(self.regime.max()) + 1


def find_clock_indices(card: SimulatedCard, settings: Settings) -> tuple[int, int, float]:
    """(place of the memory clock, place of the SM clock, power cap) under some settings."""
    clocks = card.list_sm_clocks_mhz()
    limit = clocks[-1] if settings.sm_mhz is None else settings.sm_mhz
    gear = max(0, int(np.searchsorted(clocks, limit, side="right")) - 1)
    top = card.memory_mhz[-1]
    memory = np.abs(np.array(card.memory_mhz) - (settings.memory_mhz or top)).argmin()
    return int(memory), gear, settings.power_w or card.spec.power.tdp_w


@dataclass(frozen=True)
class PhaseCosts:
    """Seconds and joules of each true phase at every limit: arrays of (regime, memory clock, SM clock)."""

    seconds: Values
    joules: Values


def compute_costs(job: SimulatedJob, cap_w: float | None = None) -> PhaseCosts:
    """Exact costs of each true phase of a job under each constant limit, without `swing_w`."""
    table = compute_tables(job.card, job.stages, cap_w or job.card.spec.power.tdp_w)
    work = np.zeros((job.count_regimes(), len(job.stages)))
    np.add.at(work, (job.regime, job.stage_indices), job.seconds)
    seconds = np.einsum("rs,smg->rmg", work, table.stretch)
    joules = np.einsum("rs,smg->rmg", work, table.stretch * table.watts)
    return PhaseCosts(seconds, joules)
