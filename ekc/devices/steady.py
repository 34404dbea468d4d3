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
from ekc.devices.residual import own_power, own_time, shared_power, shared_time
from ekc.devices.specs import Spec
from ekc.devices.traits import traits
from ekc.errors import DeviceError

Launches = tuple[tuple[Events, Occupancy], ...]
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

    launches: Launches
    dynamic: power.DynamicEnergy
    time_factors: tuple[float, ...]
    """What the models do not explain of the work of each launch: how much longer it takes."""


def work(spec: Spec, kernel: CompiledKernel, ran: tuple[Executed, ...]) -> Work:
    """Events and energy of all launches; `ran` holds one entry per launch."""
    launches = _launches(spec, kernel, ran)
    content, looks = digest(kernel), [traits(counted, resident) for counted, resident in launches]
    time, energy = own_time(spec.name, content), own_power(spec.name, content)
    return _off_by(
        spec,
        launches,
        tuple(time * shared_time(spec.name, look) for look in looks),
        tuple(energy * shared_power(spec.name, look) for look in looks),
    )


def explained(spec: Spec, kernel: CompiledKernel, ran: tuple[Executed, ...]) -> Work:
    """The same as far as the models explain it, without the seeded residual."""
    launches = _launches(spec, kernel, ran)
    plain = (1.0,) * len(launches)
    return _off_by(spec, launches, plain, plain)


def _off_by(spec: Spec, launches: Launches, times: tuple[float, ...], energies: tuple[float, ...]) -> Work:
    """What launches do, off what the models say by a factor on the time and one on the energy of each."""
    modelled = [power.dynamic_energy(spec, counted) for counted, _ in launches]
    pairs = list(zip(energies, modelled, strict=True))
    dynamic = power.DynamicEnergy(
        core_j=sum(factor * joules.core_j for factor, joules in pairs),
        memory_j=sum(factor * joules.memory_j for factor, joules in pairs),
    )
    return Work(launches, dynamic, times)


def _launches(spec: Spec, kernel: CompiledKernel, ran: tuple[Executed, ...]) -> Launches:
    return tuple(
        _launch(spec, launch, resources, one)
        for launch, resources, one in zip(kernel.launches, kernel.resources, ran, strict=True)
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
    expected = sum(
        latency(spec, counted, resident, clock_mhz).off_by(factor)
        for (counted, resident), factor in zip(todo.launches, todo.time_factors, strict=True)
    )
    # A lucky residual must not carry a kernel past the physics.
    least = sum(least_seconds(spec, counted, clock_mhz) for counted, _ in todo.launches)
    seconds = max(expected, least)
    clock = power.active_clock_power(spec, clock_mhz, _busy(spec, todo))
    busy = clock + todo.dynamic.at(spec.voltage.at(clock_mhz)) / seconds
    return Steady(seconds, clock_mhz, busy, ())


def _busy(spec: Spec, todo: Work) -> float:
    """Share of the SMs with work, mean over the launches."""
    shares = [min(1.0, counted.blocks / spec.sms) for counted, _ in todo.launches]
    return sum(shares) / len(shares)
