"""Where the energy of one call goes on a simulated device: every joule of the model, by cause.

The board is taken warm, as it settles while it calls the kernel over and over. A meter adds its noise to
the sum, and a short window sees a cooler board that leaks less.
"""

from __future__ import annotations

from dataclasses import dataclass

from ekc.devices import power
from ekc.devices.specs import GpuSpec
from ekc.devices.steady import KernelWork, SteadyState, find_steady_state

_SETTLING_STEPS = 60
"""Steps to the temperature at which heat and cooling agree; each shrinks the error by 5 at least."""


@dataclass(frozen=True)
class EnergyCause:
    """What some joules of a call were for."""

    name: str
    count: float
    unit: str
    joules: float


@dataclass(frozen=True)
class EnergyBreakdown:
    """The energy of one call. The causes add up to power x latency; the same ones for every kernel."""

    latency_s: float
    power_w: float
    clock_mhz: float
    causes: tuple[EnergyCause, ...]

    @property
    def energy_j(self) -> float:
        """Joules per call."""
        return sum(cause.joules for cause in self.causes)


def break_down_energy(spec: GpuSpec, kernel_work: KernelWork, requested_mhz: float) -> EnergyBreakdown:
    """The energy of one call at the asked clock, or the one that the power cap allows."""
    state = find_steady_state(spec, kernel_work, requested_mhz)
    settled = _find_settled_temperature(spec, state)
    idle = power.compute_idle_power(spec, state.clock_mhz, settled)
    causes = (
        *_list_dynamic_causes(spec, kernel_work, state.clock_mhz),
        *_list_static_causes(spec, kernel_work, state, settled),
    )
    return EnergyBreakdown(state.latency_s, idle + state.active_power_w, state.clock_mhz, causes)


def _find_settled_temperature(spec: GpuSpec, state: SteadyState) -> float:
    celsius = spec.power.ambient_c
    for _ in range(_SETTLING_STEPS):
        watts = power.compute_idle_power(spec, state.clock_mhz, celsius) + state.active_power_w
        celsius = spec.power.ambient_c + spec.power.kelvin_per_w * watts
    return celsius


def _list_dynamic_causes(spec: GpuSpec, kernel_work: KernelWork, clock_mhz: float) -> tuple[EnergyCause, ...]:
    """By kind of event, all launches together; and what the seeded residuals add, which no event explains."""
    voltage = spec.voltage.at_clock(clock_mhz)
    launches = [power.compute_event_energies(spec, counted) for counted, _ in kernel_work.launches]
    causes = []
    for same in zip(*launches, strict=True):
        scale = voltage**2 if same[0].is_core else 1.0
        joules = scale * sum(part.joules for part in same)
        causes.append(EnergyCause(same[0].kind, sum(part.count for part in same), same[0].unit, joules))
    residual = kernel_work.dynamic_energy.at_voltage(voltage) - sum(cause.joules for cause in causes)
    return (*causes, EnergyCause("unexplained by events", 0.0, "", residual))


def _list_static_causes(
    spec: GpuSpec, kernel_work: KernelWork, state: SteadyState, temperature_c: float
) -> tuple[EnergyCause, ...]:
    """What is paid by the second, whatever the kernel does in it."""
    seconds, clock = state.latency_s, state.clock_mhz
    static = power.compute_static_power(spec, clock, temperature_c)
    constant = spec.power.constant_w
    tree = power.compute_idle_power(spec, clock, temperature_c) - static - constant
    active = (
        state.active_power_w - kernel_work.dynamic_energy.at_voltage(spec.voltage.at_clock(clock)) / seconds
    )
    watts = (("constant power", constant), ("leakage", static), ("clock tree", tree + active))
    return tuple(EnergyCause(f"{name} x time", seconds, "s", w * seconds) for name, w in watts)
