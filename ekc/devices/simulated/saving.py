"""How sure a simulated saving is: the same two kernels on other devices that the recordings allow.

A simulated device has one set of event energies and one seeded residual. The recordings that these come from
leave room: energies have intervals, and the residual is one draw of a process whose size alone is known. Here
both are drawn many times, and each draw says what one kernel saves against the other. Two kernels that
are alike share most of their residual, so a saving between them is surer than one between unlike kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.devices.simulated import power
from ekc.devices.simulated.operating_point import (
    KernelWork,
    compute_settled_temperature,
    find_steady_state,
)
from ekc.devices.simulated.residual import (
    LENGTH_SCALE_OCTAVES,
    OWN_POWER_SIGMA,
    OWN_TIME_SIGMA,
    SHARED_POWER_SIGMA,
    SHARED_TIME_SIGMA,
    compute_traits,
)
from ekc.devices.simulated.specs import GpuSpec
from ekc.devices.statistics import Interval

Vector = NDArray[np.float64]

DRAWS = 400
QUANTILES = (0.025, 0.975)
"""Quantiles of the drawn savings at the ends of the interval."""
_JITTER = 1e-9


@dataclass(frozen=True)
class _Draws:
    """Factors drawn for each draw; one row per draw."""

    time: Vector
    """On the time of each launch, `[draws, launches]`."""
    energy: Vector
    """On the dynamic energy of each launch, `[draws, launches]`."""
    kinds: dict[str, Vector]
    """On the energy of each kind of event, `[draws]` each."""


def estimate_saving_interval(
    spec: GpuSpec, work: KernelWork, other: KernelWork, clock_mhz: float, random: np.random.Generator
) -> Interval:
    """95 % interval of the share of energy that `work` saves against `other`; both without a residual."""
    sizes = [len(work.launches), len(other.launches)]
    draws = _draw_factors([*work.launches, *other.launches], sizes, random)
    mine, others = (
        _compute_energies(spec, one, draws, start, clock_mhz) for one, start in ((work, 0), (other, sizes[0]))
    )
    low, high = np.quantile(1.0 - mine / others, QUANTILES)
    return Interval(float(low), float(high))


def _draw_factors(launches: Sequence[Any], sizes: Sequence[int], random: np.random.Generator) -> _Draws:
    traits = np.array([compute_traits(events, resident) for events, resident in launches])
    squares = ((traits[:, None] - traits) ** 2).sum(axis=2)
    shared = np.exp(-0.5 * squares / LENGTH_SCALE_OCTAVES**2)
    root = np.linalg.cholesky(shared + _JITTER * np.eye(len(launches)))

    def draw(shared_sigma: float, own_sigma: float) -> Vector:
        own = np.repeat(random.standard_normal((DRAWS, len(sizes))), sizes, axis=1)
        paths = random.standard_normal((DRAWS, len(launches))) @ root.T
        return np.asarray(np.exp(shared_sigma * paths + own_sigma * own))

    kinds = {
        kind: factor
        for group in power.ENERGY_GROUPS.values()
        for factor in [np.exp(group.log_std * random.standard_normal(DRAWS))]
        for kind in group.kinds
    }
    return _Draws(
        time=draw(SHARED_TIME_SIGMA, OWN_TIME_SIGMA),
        energy=draw(SHARED_POWER_SIGMA, OWN_POWER_SIGMA),
        kinds=kinds,
    )


def _compute_energies(spec: GpuSpec, work: KernelWork, draws: _Draws, start: int, clock_mhz: float) -> Vector:
    """Joules of a call for each draw; the launches of `work` are columns of the draws from `start` on."""
    core, memory = np.zeros(DRAWS), np.zeros(DRAWS)
    columns = range(start, start + len(work.launches))
    for column, (events, _) in zip(columns, work.launches, strict=True):
        for part in power.compute_event_energies(spec, events):
            joules = part.joules * draws.kinds[part.kind] * draws.energy[:, column]
            core, memory = (core + joules, memory) if part.is_core else (core, memory + joules)
    drawn = KernelWork(
        work.launches, power.DynamicEnergy(core, memory), tuple(draws.time[:, column] for column in columns)
    )
    state = find_steady_state(spec, drawn, clock_mhz)
    idle = power.compute_idle_power(spec, state.clock_mhz, compute_settled_temperature(spec, state))
    return np.asarray((idle + state.active_power_w) * state.latency_s)
