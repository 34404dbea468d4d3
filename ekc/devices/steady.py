"""The state a simulated GPU settles in while it runs one kernel back to back: clock, time, power."""

from __future__ import annotations

from dataclasses import dataclass

from ekc.codegen.compiled import CompiledKernel, Launch, Resources
from ekc.devices import power
from ekc.devices.accesses import Executed
from ekc.devices.base import POWER_CAP
from ekc.devices.digest import digest
from ekc.devices.events import Events, events
from ekc.devices.latency import latency, least_seconds
from ekc.devices.occupancy import Occupancy, occupancy
from ekc.devices.residual import power_residual, time_residual
from ekc.devices.specs import Spec
from ekc.errors import DeviceError

_BISECTIONS = 40


@dataclass(frozen=True)
class Steady:
    """One kernel on one GPU, warm, at the clock it can hold."""

    latency_s: float
    """One call: all launches, overhead included."""
    clock_mhz: float
    busy_w: float
    """What running adds to idle power, at that clock."""
    throttle: tuple[str, ...]


@dataclass(frozen=True)
class Work:
    """What one call of a kernel does, before any clock is chosen."""

    launches: tuple[tuple[Events, Occupancy], ...]
    dynamic: power.DynamicEnergy
    time_factor: float


def work(spec: Spec, kernel: CompiledKernel, ran: tuple[Executed, ...]) -> Work:
    """Events and energy of all launches; `ran` holds one entry per launch."""
    launches = tuple(
        _launch(spec, launch, resources, one)
        for launch, resources, one in zip(kernel.launches, kernel.resources, ran, strict=True)
    )
    energies = [power.dynamic_energy(spec, counted) for counted, _ in launches]
    content = digest(kernel)
    factor = power_residual(spec.name, content)
    return Work(
        launches,
        power.DynamicEnergy(
            factor * sum(energy.core_j for energy in energies),
            factor * sum(energy.memory_j for energy in energies),
        ),
        time_residual(spec.name, content),
    )


def _launch(spec: Spec, launch: Launch, resources: Resources, ran: Executed) -> tuple[Events, Occupancy]:
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    shared = launch.shared_bytes + resources.shared_bytes
    resident = occupancy(spec.capability, threads, resources.registers, shared)
    if resident.blocks == 0:
        raise DeviceError(
            f"{launch.name} cannot start on {spec.name}: no room for one block of {threads} threads with "
            f"{resources.registers} registers each and {shared} bytes of shared memory "
            f"(too much of: {resident.limited_by})"
        )
    return events(spec, launch, resources, ran, resident), resident


def steady(spec: Spec, todo: Work, asked_mhz: float) -> Steady:
    """Run at the asked clock, or at the highest one whose power stays under the cap."""
    hot = spec.power.ambient_c + spec.power.kelvin_per_w * spec.power.tdp_w
    state = _at(spec, todo, asked_mhz)
    if state.busy_w + power.idle_power(spec, asked_mhz, hot) <= spec.power.tdp_w:
        return state
    low, high = float(spec.lowest_mhz), asked_mhz
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        over = _at(spec, todo, middle).busy_w + power.idle_power(spec, middle, hot) > spec.power.tdp_w
        low, high = (low, middle) if over else (middle, high)
    capped = _at(spec, todo, low)
    return Steady(capped.latency_s, low, capped.busy_w, (POWER_CAP,))


def _at(spec: Spec, todo: Work, clock_mhz: float) -> Steady:
    """Time and power at a clock, cap or no cap."""
    modelled = sum(latency(spec, counted, resident, clock_mhz).seconds for counted, resident in todo.launches)
    # A lucky residual must not carry a kernel past the physics.
    least = sum(least_seconds(spec, counted, clock_mhz) for counted, _ in todo.launches)
    seconds = max(todo.time_factor * modelled, least)
    clock = power.active_clock_power(spec, clock_mhz, _busy(spec, todo))
    busy = clock + todo.dynamic.at(spec.voltage.at(clock_mhz)) / seconds
    return Steady(seconds, clock_mhz, busy, ())


def _busy(spec: Spec, todo: Work) -> float:
    """Share of the SMs with work, mean over the launches."""
    shares = [min(1.0, counted.blocks / spec.sms) for counted, _ in todo.launches]
    return sum(shares) / len(shares)
