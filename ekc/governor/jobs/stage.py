"""A stage: the stretch of a training iteration that one kind of kernel fills, and its answer to clocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ekc.governor.jobs.card import Card

Values = NDArray[np.float64]
PAUSED_SHARE = 0.6
"""Of the constant power: what a board draws when nothing has run for a while (estimate)."""


@dataclass(frozen=True)
class Stage:
    """Kernels of one kind, or the host alone (`sm_util` 0), at the top clocks without a power cap."""

    name: str
    core: float
    """What follows the SM clock; the rest follows the memory clock (`facts.Kernel`)."""
    sharpness: float
    share: float
    """Of the board's power limit, drawn."""
    sm_util: float
    memory_util: float
    pipe_util: float
    """Of the busiest arithmetic pipe, 0 to 100."""
    tensor: float
    """Share of the arithmetic that runs on tensor cores."""
    paused: bool = False
    """Whether the whole job waits, long enough for the board to rest."""


@dataclass(frozen=True)
class Tables:
    """Stages under every limit: arrays of (stage, memory clock, SM clock)."""

    stretch: Values
    """Seconds over those at the top clocks without a cap."""
    watts: Values
    clock_mhz: Values
    """The clock that the power cap leaves."""


def tables(card: Card, stages: tuple[Stage, ...], cap_w: float) -> Tables:
    """What every stage takes and draws at every clock limit under one power cap."""
    free = [_uncapped(card, stage) for stage in stages]
    stretch = np.array([s for s, _ in free])
    watts = np.array([w for _, w in free])
    within = np.maximum.accumulate(watts <= cap_w, axis=2)
    # The highest clock not above the limit that keeps the cap; the lowest one where none does.
    places = np.where(watts <= cap_w, np.arange(watts.shape[2]), 0)
    held = np.where(within, np.maximum.accumulate(places, axis=2), 0)
    return Tables(
        stretch=np.take_along_axis(stretch, held, axis=2),
        watts=np.take_along_axis(watts, held, axis=2),
        clock_mhz=card.sm_mhz()[held],
    )


def _uncapped(card: Card, stage: Stage) -> tuple[Values, Values]:
    """Stretch and watts by memory clock and SM clock."""
    resting = card.resting_w()
    if stage.paused:
        return np.ones_like(resting), np.full_like(resting, PAUSED_SHARE * card.spec.power.constant_w)
    if stage.sm_util == 0:
        return np.ones_like(resting), resting
    slower = card.sm_mhz()[-1] / card.sm_mhz()[None, :]
    starved = card.memory_mhz[-1] / np.array(card.memory_mhz, float)[:, None]
    p = stage.sharpness
    stretch = (stage.core * slower**p + (1 - stage.core) * starved**p) ** (1 / p)
    working = resting + card.working_w()[None, :]
    moving = (
        stage.memory_util / 100 * card.spec.memory_bytes_per_s * card.spec.power.memory_pj_per_byte * 1e-12
    )
    computing = max(0.0, stage.share * card.spec.power.tdp_w - working[-1, -1] - moving)
    return stretch, working + (computing * card.voltage_squared()[None, :] + moving) / stretch
