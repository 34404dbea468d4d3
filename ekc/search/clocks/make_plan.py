"""Makes the clock plan of a model from the figures of its kernels over clocks.

A model has layers, a layer has kernels that compute it, and a kernel has a latency and an energy at each
clock, measured or predicted. One operator is a model of one layer.

The limit is on the time of the model: one layer may be slower than it where others are faster. Intervals of
sums take all errors of a plan as alike, since the layers share a meter and a model of the board, and errors
of two plans as independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ekc.devices.statistics import MeasuredValue
from ekc.errors import InvalidInput
from ekc.search.clocks.choose import (
    ClockChoice,
    LayerFront,
    ModelFronts,
    WeightedFigures,
    choose_fastest,
    choose_plan,
)
from ekc.search.clocks.plan import ClockPlan, Estimate, FrontPoint, PhaseAdvice, PlannedLayer, PlanSavings

SLOWDOWNS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2)
"""Limits of the front over slowdowns."""


def make_plan(fronts: ModelFronts, max_slowdown: float) -> ClockPlan:
    """Choose clock and kernels of least energy within `max_slowdown` of the fastest at the default clock."""
    figures = weigh_fronts(fronts.layers)
    default = fronts.clocks_mhz.index(fronts.default_mhz)
    fastest = _choose_fastest(figures, fronts.layers, default)
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


def _choose_fastest(figures: WeightedFigures, layers: Sequence[LayerFront], clock: int) -> ClockChoice:
    return choose_fastest(figures, clock, [[kernel.role for kernel in layer.kernels] for layer in layers])


def _choose(figures: WeightedFigures, limit_s: float) -> ClockChoice:
    found = choose_plan(figures, limit_s)
    if found is None:
        raise InvalidInput(
            "no clock and kernels are within the limit on the time; the default clock always is"
        )
    return found


def _choose_clock_of(figures: WeightedFigures, kernels: tuple[int, ...], limit_s: float) -> ClockChoice:
    return replace(_choose(figures.select_kernels(kernels), limit_s), kernels=kernels)


def _list_chosen(fronts: ModelFronts, choice: ClockChoice, name: str) -> Iterable[tuple[int, MeasuredValue]]:
    """Calls of each layer, and a figure of its chosen kernel."""
    for layer, kernel in zip(fronts.layers, choice.kernels, strict=True):
        yield layer.call_count, getattr(layer.kernels[kernel], name)[choice.clock]


def _sum_values(fronts: ModelFronts, choice: ClockChoice, name: str) -> Estimate:
    terms = list(_list_chosen(fronts, choice, name))
    return Estimate(
        sum(calls * x.value for calls, x in terms),
        sum(calls * x.interval.low for calls, x in terms),
        sum(calls * x.interval.high for calls, x in terms),
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
        latency_s=_to_estimate(latency),
        energy_j=_to_estimate(energy),
        slowdown=latency.value / other.latency_s[fastest.clock].value - 1,
        saved_j=calls * (other.energy_j[fastest.clock].value - energy.value),
    )


def _to_estimate(measured: MeasuredValue) -> Estimate:
    return Estimate(measured.value, measured.interval.low, measured.interval.high)


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
        fastest = _choose_fastest(figures, layers, default)
        found = _choose(figures, (1 + max_slowdown) * fastest.latency_s)
        more, saved = found.latency_s / fastest.latency_s - 1, 1 - found.energy_j / fastest.energy_j
        yield PhaseAdvice(phase, fronts.clocks_mhz[found.clock], more, saved)
