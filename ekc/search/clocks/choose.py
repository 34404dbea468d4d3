"""One clock for all layers, and a kernel for each: least energy within a limit on the time of the model.

At one clock this is a knapsack with a choice for each layer. A price on time (the Lagrange multiplier) turns
it into a separate choice for each layer; bisection finds the price at which the time just fits. That gives a
lower bound of the energy, and a solution whose leftover time the layers then use one after the other. For one
layer this is exact; for several, the distance from the bound is the `gap`. All clocks, and all draws of
uncertain energies, are solved at once.

A model has layers, a layer has kernels that compute it, and a kernel has a latency and an energy at each
clock, measured or predicted. One operator is a model of one layer. The limit is on the time of the model: one
layer may be slower than it where others are faster. `make_plan` makes the clock plan. Its intervals of sums
take all errors of a plan as alike, since the layers share a meter and a model of the board, and errors of two
plans as independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ekc.errors import InvalidInput
from ekc.search.clocks.plan import ClockPlan, Estimate, FrontPoint, PhaseAdvice, PlannedLayer, PlanSavings

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Kernel = TypeVar("Kernel")

_BISECTIONS = 50
"""Halvings of the price of time, from 24 decimal orders down to rounding."""
_LOG_PRICE_RANGE = (-12.0, 12.0)
"""Decimal logarithms of the least and the largest price, in units of energy over time of the model."""
_TIME_ROUNDING = 1e-12
"""Share of the limit by which rounding may exceed it."""

SLOWDOWNS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2)
"""Limits of the front over slowdowns."""


@dataclass(frozen=True)
class ClockChoice:
    """A clock and a kernel for each layer."""

    clock: int
    """Index of the clock."""
    kernels: tuple[int, ...]
    """Index of the kernel of each layer."""
    latency_s: float
    """Time of all calls."""
    energy_j: float
    """Energy of all calls."""
    bound_j: float
    """Lower bound of the energy that any choice within the limit can have."""

    @property
    def gap(self) -> float:
        """Share of the energy by which a better choice may beat this one, at most."""
        return max(0.0, 1.0 - self.bound_j / self.energy_j)


@dataclass(frozen=True)
class WeightedFigures:
    """Figures of all kernels over clocks, times the calls of their layer."""

    latency_s: tuple[Array, ...]
    """One array [kernel, clock] for each layer."""
    energy_j: tuple[Array, ...]
    """One array [..., kernel, clock] for each layer; leading axes are draws."""

    def select_clocks(self, clocks: list[int]) -> WeightedFigures:
        """The same figures at some of the clocks."""
        latency, energy = (tuple(x[..., clocks] for x in each) for each in (self.latency_s, self.energy_j))
        return WeightedFigures(latency, energy)

    def select_kernels(self, kernels: tuple[int, ...]) -> WeightedFigures:
        """The same figures of one kernel of each layer."""
        latency, energy = (
            tuple(x[..., k : k + 1, :] for x, k in zip(each, kernels, strict=True))
            for each in (self.latency_s, self.energy_j)
        )
        return WeightedFigures(latency, energy)


@dataclass(frozen=True)
class ClockSolutions:
    """The choice at every clock; leading axes are draws."""

    kernels: tuple[Indices, ...]
    """Index of the kernel, one array [..., clock] for each layer."""
    latency_s: Array
    energy_j: Array
    """Energy; infinity at a clock where no choice is within the limit."""
    bound_j: Array


def choose_plan(figures: WeightedFigures, max_latency_s: float) -> ClockChoice | None:
    """Choose the clock and the kernels of least energy; None where none is within the limit."""
    found = solve_all_clocks(figures, max_latency_s)
    clock = int(np.argmin(found.energy_j))
    if not np.isfinite(found.energy_j[clock]):
        return None
    kernels = tuple(int(k[clock]) for k in found.kernels)
    latency, energy = float(found.latency_s[clock]), float(found.energy_j[clock])
    return ClockChoice(clock, kernels, latency, energy, float(found.bound_j.min()))


def choose_fastest(figures: WeightedFigures, clock: int, layers: Sequence[LayerKernels[Any]]) -> ClockChoice:
    """The fastest kernel of each layer at a clock: the one whose role says so, or the one of least time.
    Savings and the limit on the time refer to it."""
    kernels = tuple(
        next((k for k, x in enumerate(layer.kernels) if "fastest" in x.role), int(np.argmin(t[:, clock])))
        for layer, t in zip(layers, figures.latency_s, strict=True)
    )
    latency, energy = (
        float(sum(x[k, clock] for x, k in zip(each, kernels, strict=True)))
        for each in (figures.latency_s, figures.energy_j)
    )
    return ClockChoice(clock, kernels, latency, energy, energy)


def solve_all_clocks(figures: WeightedFigures, max_latency_s: float) -> ClockSolutions:
    """Solve the knapsack of each clock, and of each draw of the energies."""
    limit = max_latency_s * (1.0 + _TIME_ROUNDING)
    unit = sum(e.min(axis=-2) for e in figures.energy_j) / max_latency_s
    low, high = (np.full(np.shape(unit), edge) for edge in _LOG_PRICE_RANGE)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        fits = _sum_chosen(figures.latency_s, _pick_kernels(figures, unit * 10**middle)) <= limit
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    price = unit * 10**high
    free, priced = _pick_kernels(figures, 0.0 * unit), _pick_kernels(figures, price)
    is_free = _sum_chosen(figures.latency_s, free) <= limit
    kernels = [np.where(is_free, a, b) for a, b in zip(free, priced, strict=True)]
    price = np.where(is_free, 0.0, price)
    bound = _sum_chosen(figures.energy_j, kernels)
    bound = bound + price * (_sum_chosen(figures.latency_s, kernels) - max_latency_s)
    _use_leftover_time(figures, kernels, limit)
    latency, energy = (_sum_chosen(x, kernels) for x in (figures.latency_s, figures.energy_j))
    feasible = latency <= limit
    return ClockSolutions(
        tuple(kernels), latency, np.where(feasible, energy, np.inf), np.where(feasible, bound, np.inf)
    )


def _pick_kernels(figures: WeightedFigures, price: Array) -> list[Indices]:
    """The kernel of each layer that is cheapest if each second costs `price` joules."""
    pairs = zip(figures.latency_s, figures.energy_j, strict=True)
    return [np.argmin(e + price[..., np.newaxis, :] * t, axis=-2) for t, e in pairs]


def _sum_chosen(values: tuple[Array, ...], kernels: list[Indices]) -> Array:
    """Sum over the layers of the figures of the chosen kernels."""
    return np.asarray(sum(_take(x, k) for x, k in zip(values, kernels, strict=True)))


def _take(values: Array, kernels: Indices) -> Array:
    """Figures of the chosen kernel: [..., kernel, clock] and [..., clock] to [..., clock]."""
    shape = (*kernels.shape[:-1], *values.shape[-2:])
    return np.take_along_axis(np.broadcast_to(values, shape), kernels[..., np.newaxis, :], axis=-2)[..., 0, :]


def _use_leftover_time(figures: WeightedFigures, kernels: list[Indices], limit: float) -> None:
    """Give each layer in turn the kernel of least energy that the time left by the others allows."""
    total = _sum_chosen(figures.latency_s, kernels)
    for n, (t, e) in enumerate(zip(figures.latency_s, figures.energy_j, strict=True)):
        mine = _take(t, kernels[n])
        room = limit - (total - mine)
        fits = t <= room[..., np.newaxis, :]
        cost = np.where(fits, e, np.inf)
        better = np.argmin(cost, axis=-2)
        kernels[n] = np.where(fits.any(axis=-2), better, kernels[n])
        total = total - mine + _take(t, kernels[n])


@dataclass(frozen=True)
class KernelFront:
    """One kernel over all clocks of a `ModelFronts`. Figures are per call of the kernel."""

    digest: str
    """Digest of the schedule."""
    role: str
    """"fastest" or "best" at the default clock, "fastest and best", or "front"."""
    latency_s: tuple[Estimate, ...]
    """Latency in seconds at each clock."""
    energy_j: tuple[Estimate, ...]
    """Energy in joules at each clock."""
    is_metered: tuple[bool, ...]
    """Whether the energy at each clock was metered; otherwise it is predicted."""


@dataclass(frozen=True)
class LayerKernels(Generic[Kernel]):
    """The kernels of one layer: those to follow over clocks, or with their figures at each clock."""

    name: str
    operator: str
    """Digest of the operator."""
    calls: Mapping[str, int]
    """Calls in one pass of the model, by phase ("prefill", "decode"); one entry for a model of one phase."""
    kernels: tuple[Kernel, ...]

    @property
    def call_count(self) -> int:
        """Calls of all phases."""
        return sum(self.calls.values())


LayerFront: TypeAlias = LayerKernels[KernelFront]


@dataclass(frozen=True)
class ModelFronts:
    """The layers of a model over the clocks of one device. Raises `InvalidInput` for lengths that differ."""

    device: str
    """Name of the device, as `Device.name`."""
    simulated: bool
    clocks_mhz: tuple[int, ...]
    """Clocks in MHz, ascending."""
    default_mhz: int
    """The clock among them that the device runs at where none is set."""
    layers: tuple[LayerFront, ...]

    def __post_init__(self) -> None:
        if not self.layers or not all(layer.kernels for layer in self.layers):
            raise InvalidInput("layers: a clock plan needs one layer or more, each with one kernel or more")
        if self.default_mhz not in self.clocks_mhz:
            raise InvalidInput(f"default_mhz: {self.default_mhz} MHz is not among the clocks")
        count = len(self.clocks_mhz)
        for layer in self.layers:
            if layer.call_count < 1:
                raise InvalidInput(f"layer {layer.name}: {layer.call_count} calls, at least 1")
            for kernel in layer.kernels:
                if not len(kernel.latency_s) == len(kernel.energy_j) == len(kernel.is_metered) == count:
                    raise InvalidInput(
                        f"layer {layer.name}: kernel {kernel.digest} needs {count} figures, one a clock"
                    )


def make_plan(fronts: ModelFronts, max_slowdown: float) -> ClockPlan:
    """Choose clock and kernels of least energy within `max_slowdown` of the fastest at the default clock."""
    figures = weigh_fronts(fronts.layers)
    default = fronts.clocks_mhz.index(fronts.default_mhz)
    fastest = choose_fastest(figures, default, fronts.layers)
    limit = (1 + max_slowdown) * fastest.latency_s
    fixed = replace(_choose(figures.select_clocks([default]), limit), clock=default)
    clock = _choose_clock_of(figures, fastest.kernels, limit)
    winners = _choose_clock_of(figures, fixed.kernels, limit)
    # The knapsack is solved nearly: a choice with fewer kernels or clocks to choose from may come out better.
    found = _choose(figures, limit)
    best = replace(min(found, winners, clock, fixed, key=lambda x: x.energy_j), bound_j=found.bound_j)
    savings = PlanSavings(*(_estimate_saving(fronts, x, fastest) for x in (fixed, clock, winners, best)))
    return ClockPlan(
        device=fronts.device,
        simulated=fronts.simulated,
        clock_mhz=fronts.clocks_mhz[best.clock],
        default_mhz=fronts.default_mhz,
        max_slowdown=float(max_slowdown),
        layers=tuple(_plan_layer(layer, best, fastest, n) for n, layer in enumerate(fronts.layers)),
        latency_s=_sum_values(fronts, best, "latency_s"),
        energy_j=_sum_values(fronts, best, "energy_j"),
        slowdown=best.latency_s / fastest.latency_s - 1,
        savings=savings,
        front=tuple(_make_front(fronts, figures, fastest)),
        phases=tuple(_advise_phases(fronts, max_slowdown)),
        gap=best.gap,
    )


def weigh_fronts(layers: Sequence[LayerFront], phase: str | None = None) -> WeightedFigures:
    """Figures of the kernels times the calls of their layer, of all phases or of one."""
    latency, energy = [], []
    for layer in layers:
        calls = layer.call_count if phase is None else layer.calls[phase]
        latency.append(calls * np.array([[x.value for x in k.latency_s] for k in layer.kernels]))
        energy.append(calls * np.array([[x.value for x in k.energy_j] for k in layer.kernels]))
    return WeightedFigures(tuple(latency), tuple(energy))


def _choose(figures: WeightedFigures, limit_s: float) -> ClockChoice:
    found = choose_plan(figures, limit_s)
    if found is None:
        raise InvalidInput(
            "no clock and kernels are within the limit on the time; the default clock always is"
        )
    return found


def _choose_clock_of(figures: WeightedFigures, kernels: tuple[int, ...], limit_s: float) -> ClockChoice:
    return replace(_choose(figures.select_kernels(kernels), limit_s), kernels=kernels)


def _sum_values(fronts: ModelFronts, choice: ClockChoice, name: str) -> Estimate:
    """Sum a figure of the chosen kernels over all calls."""
    chosen = zip(fronts.layers, choice.kernels, strict=True)
    terms = [(layer.call_count, getattr(layer.kernels[k], name)[choice.clock]) for layer, k in chosen]
    return Estimate(
        sum(calls * x.value for calls, x in terms),
        sum(calls * x.low for calls, x in terms),
        sum(calls * x.high for calls, x in terms),
    )


def _estimate_saving(fronts: ModelFronts, choice: ClockChoice, reference: ClockChoice) -> Estimate:
    """Share of energy saved. The same choice saves exactly nothing."""
    if (choice.clock, choice.kernels) == (reference.clock, reference.kernels):
        return Estimate(0.0, 0.0, 0.0)
    mine, other = (_sum_values(fronts, x, "energy_j") for x in (choice, reference))
    ratio = mine.value / other.value
    error = math.hypot(*(math.log(x.high / x.low) / 2 for x in (mine, other)))
    return Estimate(1 - ratio, 1 - ratio * math.exp(error), 1 - ratio * math.exp(-error))


def _plan_layer(layer: LayerFront, best: ClockChoice, fastest: ClockChoice, number: int) -> PlannedLayer:
    kernel, other = layer.kernels[best.kernels[number]], layer.kernels[fastest.kernels[number]]
    latency, energy = kernel.latency_s[best.clock], kernel.energy_j[best.clock]
    calls = layer.call_count
    return PlannedLayer(
        name=layer.name,
        operator=layer.operator,
        schedule=kernel.digest,
        role=kernel.role,
        calls=calls,
        latency_s=latency,
        energy_j=energy,
        slowdown=latency.value / other.latency_s[fastest.clock].value - 1,
        saved_j=calls * (other.energy_j[fastest.clock].value - energy.value),
    )


def _make_front(fronts: ModelFronts, figures: WeightedFigures, fastest: ClockChoice) -> Iterable[FrontPoint]:
    for slowdown in SLOWDOWNS:
        found = _choose(figures, (1 + slowdown) * fastest.latency_s)
        more, saved = found.latency_s / fastest.latency_s - 1, 1 - found.energy_j / fastest.energy_j
        yield FrontPoint(slowdown, fronts.clocks_mhz[found.clock], more, saved)


def _advise_phases(fronts: ModelFronts, max_slowdown: float) -> Iterable[PhaseAdvice]:
    """The best clock of each phase alone; nothing for a model of one phase."""
    phases = list(dict.fromkeys(phase for layer in fronts.layers for phase in layer.calls))
    default = fronts.clocks_mhz.index(fronts.default_mhz)
    for phase in phases if len(phases) > 1 else ():
        layers = [layer for layer in fronts.layers if layer.calls.get(phase)]
        figures = weigh_fronts(layers, phase)
        fastest = choose_fastest(figures, default, layers)
        found = _choose(figures, (1 + max_slowdown) * fastest.latency_s)
        more, saved = found.latency_s / fastest.latency_s - 1, 1 - found.energy_j / fastest.energy_j
        yield PhaseAdvice(phase, fronts.clocks_mhz[found.clock], more, saved)
