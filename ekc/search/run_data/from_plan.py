"""Figures of a clock plan for a report."""

from __future__ import annotations

import numpy as np

from ekc.report.run_data import PlanData, Table
from ekc.search.clocks.plan import ClockPlan, PlannedLayer
from ekc.tables import format_quantity

LAYER_HEADERS = ("layer", "calls", "kernel", "latency", "energy", "time", "saves")


def collect_plan(plan: ClockPlan) -> PlanData:
    """Collect the figures of a plan."""
    choices = plan.savings.list_named()
    ranked = plan.list_layers_by_saving()
    return PlanData(
        choice=plan.describe_choice(),
        simulated=plan.simulated,
        clock_mhz=plan.clock_mhz,
        max_slowdown=plan.max_slowdown,
        choices=tuple(name for name, _ in choices),
        saving=np.array([x.value for _, x in choices]),
        saving_low=np.array([x.low for _, x in choices]),
        saving_high=np.array([x.high for _, x in choices]),
        front_slowdown=np.array([x.max_slowdown for x in plan.front]),
        front_clock_mhz=np.array([x.clock_mhz for x in plan.front], np.int64),
        front_saving=np.array([x.saving for x in plan.front]),
        layer_names=tuple(layer.name for layer, _ in ranked),
        layer_saving=np.array([share for _, share in ranked]),
        layers=Table(
            LAYER_HEADERS,
            tuple(_format_layer(layer, share) for layer, share in ranked),
            f"Latency and energy of a call at {plan.clock_mhz} MHz. Time: against the fastest kernel at "
            f"{plan.default_mhz} MHz. Saves: share of the model's energy.",
        ),
        advice=plan.list_advice(),
    )


def _format_layer(layer: PlannedLayer, share: float) -> tuple[str, ...]:
    figures = (_format_scaled(layer.latency_s.value, "s"), _format_scaled(layer.energy_j.value, "J"))
    more = (f"{100 * layer.slowdown:+z.1f} %", f"{100 * share:z.1f} %")
    return (layer.name, str(layer.calls), layer.role, *figures, *more)


def _format_scaled(value: float, unit: str) -> str:
    return format_quantity(value, unit).replace(" u", " \N{MICRO SIGN}")
