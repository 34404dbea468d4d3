"""A simulated GPU that runs one kernel back to back: clock, time and power under the power cap, and how sure
a saving between two kernels is.

A simulated device has one set of event energies and one seeded residual. The recordings that these come from
leave room: energies have intervals, and the residual is one draw of a process whose size alone is known. Here
both are drawn many times, and each draw says what one kernel saves against the other. Two kernels that
are alike share most of their residual, so a saving between them is surer than one between unlike kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ekc.codegen.compiled import CompiledKernel, Launch, Resources, digest_kernel
from ekc.devices.device import POWER_CAP
from ekc.devices.simulated import power
from ekc.devices.simulated.events import Events, count_events
from ekc.devices.simulated.latency import compute_min_latency_s, estimate_latency
from ekc.devices.simulated.launch_counts import LaunchProfile, Occupancy, compute_occupancy
from ekc.devices.simulated.memory_traffic import compute_kept_share
from ekc.devices.simulated.residual import (
    LENGTH_SCALE_OCTAVES,
    OWN_POWER_SIGMA,
    OWN_TIME_SIGMA,
    SHARED_POWER_SIGMA,
    SHARED_TIME_SIGMA,
    Quantity,
    Vector,
    compute_traits,
    sample_own_factor,
    sample_shared_factor,
)
from ekc.devices.simulated.specs import GpuSpec
from ekc.devices.statistics import Interval
from ekc.errors import DeviceError

LaunchEvents = tuple[tuple[Events, Occupancy], ...]
_SEARCH_ROUNDS, _CLOCKS_PER_ROUND = 6, 66
"""Rounds of the search for the clock under the cap, each of which divides its interval by 65."""
_SETTLING_STEPS = 60
"""Steps to the temperature where heat and cooling balance; each divides the error by five or more."""


@dataclass(frozen=True)
class SteadyState:
    """Operating point of one kernel on one warm GPU; arrays where the work has arrays."""

    latency_s: Any
    """Seconds of one call: all launches, overhead included."""
    clock_mhz: Any
    active_power_w: Any
    """Watts above idle power, at that clock."""
    throttle: tuple[str, ...]


@dataclass(frozen=True)
class KernelWork:
    """Work of one call of a kernel, before a clock is chosen."""

    launches: LaunchEvents
    dynamic_energy: power.DynamicEnergy
    time_factors: tuple[Any, ...]
    """Factor of each launch on the time of its work, which the models do not explain."""


def compute_work(
    spec: GpuSpec,
    kernel: CompiledKernel,
    profiles: tuple[LaunchProfile, ...],
    is_cold: bool = False,
    has_residual: bool = True,
) -> KernelWork:
    """Events and energy of all launches; `profiles` has one entry per launch. `is_cold`: the L2 is
    overwritten before each call. Without the residual they are those of the models alone."""
    launches = _count_launch_events(spec, kernel, profiles, is_cold)
    times = energies = (1.0,) * len(launches)
    if has_residual:
        times, energies = (_sample_factors(spec, kernel, launches, one) for one in ("time", "power"))
    modelled = [power.compute_dynamic_energy(spec, events) for events, _ in launches]
    pairs = list(zip(energies, modelled, strict=True))
    dynamic = power.DynamicEnergy(
        core_j=sum(factor * joules.core_j for factor, joules in pairs),
        memory_j=sum(factor * joules.memory_j for factor, joules in pairs),
    )
    return KernelWork(launches, dynamic, times)


def _sample_factors(
    spec: GpuSpec, kernel: CompiledKernel, launches: LaunchEvents, quantity: Quantity
) -> tuple[float, ...]:
    """Factor of the residual on each launch."""
    own = sample_own_factor(spec.name, quantity, digest_kernel(kernel))
    traits = (compute_traits(events, resident) for events, resident in launches)
    return tuple(own * sample_shared_factor(spec.name, quantity, one) for one in traits)


def _count_launch_events(
    spec: GpuSpec, kernel: CompiledKernel, profiles: tuple[LaunchProfile, ...], is_cold: bool
) -> LaunchEvents:
    kept_share = 0.0 if is_cold else compute_kept_share(spec, kernel.launches)
    each = zip(kernel.launches, kernel.resources, profiles, strict=True)
    return tuple(_count_events_of_launch(spec, *one, kept_share) for one in each)


def _count_events_of_launch(
    spec: GpuSpec, launch: Launch, resources: Resources, profile: LaunchProfile, kept_share: float
) -> tuple[Events, Occupancy]:
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    shared = launch.shared_bytes + resources.shared_bytes
    resident = compute_occupancy(spec.capability, threads, resources.registers, shared)
    if resident.blocks == 0:
        raise DeviceError(
            f"{launch.name} cannot start on {spec.name}: no room for one block of {threads} threads with "
            f"{resources.registers} registers each and {shared} bytes of shared memory "
            f"(too much of: {resident.limited_by})"
        )
    return count_events(spec, launch, resources, profile, resident, kept_share), resident


def compute_steady_state(spec: GpuSpec, kernel_work: KernelWork, requested_mhz: float) -> SteadyState:
    """The operating point at the requested clock, or at the highest clock whose power stays under the cap.

    Where the work has arrays of factors and energies, so has the state; its throttle says whether any of them
    is capped."""
    state = _run_at_clock(spec, kernel_work, requested_mhz)
    over = _exceeds_cap(spec, state)
    if not np.any(over):
        return _simplify(state)
    low, high = np.full(np.shape(over), float(spec.min_mhz)), np.full(np.shape(over), requested_mhz)
    for _ in range(_SEARCH_ROUNDS):
        clocks = np.linspace(low, high, _CLOCKS_PER_ROUND)
        is_under = ~_exceeds_cap(spec, _run_at_clock(spec, kernel_work, clocks))[1:-1]
        under = np.count_nonzero(is_under, axis=0)[np.newaxis]
        low, high = (np.take_along_axis(clocks, under + n, axis=0)[0] for n in (0, 1))
    settled = _run_at_clock(spec, kernel_work, np.where(over, low, requested_mhz))
    return replace(_simplify(settled), throttle=(POWER_CAP,))


def compute_settled_temperature(spec: GpuSpec, state: SteadyState) -> Any:
    """Degrees Celsius of a board in this state once heat and cooling balance."""
    idle, celsius = power.compute_idle_parts(spec, state.clock_mhz), spec.power.ambient_c
    for _ in range(_SETTLING_STEPS):
        watts = idle.compute_total(celsius) + state.active_power_w
        celsius = spec.power.ambient_c + spec.power.kelvin_per_w * watts
    return celsius


def _exceeds_cap(spec: GpuSpec, state: SteadyState) -> Any:
    """Whether the board would draw more than its cap, at the temperature that it has at the cap."""
    hot = spec.power.ambient_c + spec.power.kelvin_per_w * spec.power.tdp_w
    return state.active_power_w + power.compute_idle_power(spec, state.clock_mhz, hot) > spec.power.tdp_w


def _simplify(state: SteadyState) -> SteadyState:
    """The state with numbers instead of arrays without dimensions."""
    latency_s, clock_mhz, power_w = (
        x if np.ndim(x) else float(x) for x in (state.latency_s, state.clock_mhz, state.active_power_w)
    )
    return SteadyState(latency_s, clock_mhz, power_w, state.throttle)


def _run_at_clock(spec: GpuSpec, kernel_work: KernelWork, clock_mhz: Any) -> SteadyState:
    """Time and power at a clock, or at each of several, regardless of the cap."""
    expected = sum(
        estimate_latency(spec, events, resident, clock_mhz).scale_work(factor)
        for (events, resident), factor in zip(kernel_work.launches, kernel_work.time_factors, strict=True)
    )
    # A favourable residual must not take a kernel below the lower bound of its latency.
    least = sum(compute_min_latency_s(spec, events, clock_mhz) for events, _ in kernel_work.launches)
    seconds = np.maximum(expected, least)
    clock = power.compute_active_clock_power(spec, clock_mhz, _compute_busy_sm_share(spec, kernel_work))
    busy = clock + kernel_work.dynamic_energy.at_voltage(spec.voltage.at_clock(clock_mhz)) / seconds
    return SteadyState(seconds, clock_mhz, busy, ())


def _compute_busy_sm_share(spec: GpuSpec, kernel_work: KernelWork) -> float:
    """Share of the SMs that have work, mean over the launches."""
    shares = [min(1.0, events.blocks / spec.sms) for events, _ in kernel_work.launches]
    return sum(shares) / len(shares)


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
    state = compute_steady_state(spec, drawn, clock_mhz)
    idle = power.compute_idle_power(spec, state.clock_mhz, compute_settled_temperature(spec, state))
    return np.asarray((idle + state.active_power_w) * state.latency_s)
