"""Where the energy of one call goes on a simulated device: every joule of the model, by cause.

The board is taken warm, as it settles while it calls the kernel over and over. A meter adds its noise to
the sum, and a short window sees a cooler board that leaks less.
"""

from __future__ import annotations

from dataclasses import dataclass

from ekc.devices import power
from ekc.devices.specs import Spec
from ekc.devices.steady import Steady, Work, steady

_SETTLING = 60
"""Steps to the temperature at which heat and cooling agree; each shrinks the error by 5 at least."""


@dataclass(frozen=True)
class Cause:
    """What some joules of a call were for."""

    name: str
    count: float
    unit: str
    joules: float


@dataclass(frozen=True)
class Breakdown:
    """The energy of one call. The causes add up to power x latency; the same ones for every kernel."""

    latency_s: float
    power_w: float
    clock_mhz: float
    causes: tuple[Cause, ...]

    @property
    def energy_j(self) -> float:
        """Joules per call."""
        return sum(cause.joules for cause in self.causes)


def breakdown(spec: Spec, todo: Work, asked_mhz: float) -> Breakdown:
    """The energy of one call at the asked clock, or the one that the power cap allows."""
    state = steady(spec, todo, asked_mhz)
    settled = _temperature(spec, state)
    idle = power.idle_power(spec, state.clock_mhz, settled)
    causes = (*_dynamic(spec, todo, state.clock_mhz), *_over_time(spec, todo, state, settled))
    return Breakdown(state.latency_s, idle + state.busy_w, state.clock_mhz, causes)


def _temperature(spec: Spec, state: Steady) -> float:
    celsius = spec.power.ambient_c
    for _ in range(_SETTLING):
        watts = power.idle_power(spec, state.clock_mhz, celsius) + state.busy_w
        celsius = spec.power.ambient_c + spec.power.kelvin_per_w * watts
    return celsius


def _dynamic(spec: Spec, todo: Work, clock_mhz: float) -> tuple[Cause, ...]:
    """By kind of event, all launches together; and what the seeded residuals add, which no event explains."""
    voltage = spec.voltage.at(clock_mhz)
    launches = [power.dynamic_parts(spec, counted) for counted, _ in todo.launches]
    causes = []
    for same in zip(*launches, strict=True):
        scale = voltage**2 if same[0].of_core else 1.0
        joules = scale * sum(part.joules for part in same)
        causes.append(Cause(same[0].kind, sum(part.count for part in same), same[0].unit, joules))
    residual = todo.dynamic.at(voltage) - sum(cause.joules for cause in causes)
    return (*causes, Cause("unexplained by events", 0.0, "", residual))


def _over_time(spec: Spec, todo: Work, state: Steady, celsius: float) -> tuple[Cause, ...]:
    """What is paid by the second, whatever the kernel does in it."""
    seconds, clock = state.latency_s, state.clock_mhz
    static = power.static_power(spec, clock, celsius)
    constant = spec.power.constant_w
    tree = power.idle_power(spec, clock, celsius) - static - constant
    active = state.busy_w - todo.dynamic.at(spec.voltage.at(clock)) / seconds
    watts = (("constant power", constant), ("leakage", static), ("clock tree", tree + active))
    return tuple(Cause(f"{name} x time", seconds, "s", w * seconds) for name, w in watts)
