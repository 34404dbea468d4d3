"""The pictures of a run by name, and that of a clock plan."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from ekc.errors import InvalidInput
from ekc.report.model_pictures import (
    draw_energy,
    draw_explanation,
    draw_importance,
    draw_predicted,
    draw_space,
)
from ekc.report.run_data import RunData
from ekc.report.theme import (
    COLORS,
    add_scatter,
    escape_text,
    import_plotly,
    make_panels,
    make_room_for_labels,
    round_column,
    style_figure,
)
from ekc.report.trial_pictures import draw_front, draw_progress, draw_roofline
from ekc.search.clocks.plan import ClockPlan

PICTURES: dict[str, Callable[[RunData], Any]] = {
    "front": draw_front,
    "progress": draw_progress,
    "roofline": draw_roofline,
    "predicted": draw_predicted,
    "importance": draw_importance,
    "energy": draw_energy,
    "explanation": draw_explanation,
    "space": draw_space,
}
"""Function that draws each picture, in the order of a report."""


def check_picture(name: object) -> str:
    """Check the name of a picture. Raises `InvalidInput` with the legal names for another one."""
    if isinstance(name, str) and name in PICTURES:
        return name
    near = difflib.get_close_matches(str(name), PICTURES, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InvalidInput(f"picture: no {name!r}; choose one of {', '.join(PICTURES)}{hint}")


def draw_picture(run: RunData, name: str) -> Any:
    """Draw a picture as a `plotly.graph_objects.Figure`. Raises `InvalidInput` for an unknown name, for a
    picture that the run has no data for, and where plotly is missing."""
    if reason := run.missing.get(check_picture(name)):
        raise InvalidInput(f"picture {name}: {reason}")
    return PICTURES[name](run)


MAX_LAYERS = 12
"""Layers drawn, at most: those that save most. The table has all of them."""
MAX_NAME = 28
"""Characters of a layer's name that are drawn, at most."""
ROW_HEIGHT = 24
"""Pixels of the bar of a layer."""
ERROR_BAR = {"thickness": 1.4, "color": "#8a8f98"}
"""Look of an interval, readable on white and on dark gray."""


def draw_plan(plan: ClockPlan) -> Any:
    """Draw a plan: energy saved by choosing kernels, clock, or both, with 95 % intervals; the saving of plans
    within other limits on the time; and the share of the saving of each layer."""
    layers = plan.list_layers_by_saving()[:MAX_LAYERS]
    names = [layer.name for layer, _ in layers] if len(layers) > 1 else []
    titles = ("by what is chosen", "within other limits", "by layer")
    if names:
        heights = (230, 40 + ROW_HEIGHT * len(names))
        spacing = 90 / (sum(heights) + 90)
        grid = {
            "specs": [[{}, {}], [{"colspan": 2}, None]],
            "row_heights": list(heights),
            "vertical_spacing": spacing,
        }
        figure = make_panels(2, 2, titles, horizontal_spacing=0.12, **grid)
        _add_layers(figure, names, [share for _, share in layers])
    else:
        figure = make_panels(1, 2, titles[:2], horizontal_spacing=0.12)
    _add_choices(figure, plan)
    _add_front(figure, plan)
    subtitle = "shares of the energy of the fastest kernels at the default clock; 95 % intervals"
    height = 520 + ROW_HEIGHT * len(names) if names else 420
    style_figure(figure, f"Energy saved at {plan.clock_mhz} MHz", subtitle, plan.simulated, height)
    labels = [choice for choice, _ in plan.savings.list_named()] + [_shorten(name) for name in names]
    return make_room_for_labels(figure, labels).update_layout(showlegend=False, margin_b=60)


def _add_choices(figure: Any, plan: ClockPlan) -> None:
    choices, savings = zip(*plan.savings.list_named(), strict=True)
    value, low, high = np.array([astuple(saving) for saving in savings]).T
    bars = import_plotly().Bar(
        x=round_column(100 * value),
        y=choices,
        orientation="h",
        error_x={
            "array": round_column(100 * (high - value)),
            "arrayminus": round_column(100 * (value - low)),
            **ERROR_BAR,
        },
        marker_color=[COLORS["metered"]] * (len(choices) - 1) + [COLORS["best"]],
        hovertemplate="%{y}: %{x:.3g} %<extra></extra>",
    )
    figure.add_trace(bars, row=1, col=1)
    figure.update_xaxes(title_text="energy saved [%]", row=1, col=1)
    figure.update_yaxes(autorange="reversed", row=1, col=1)


def _add_front(figure: Any, plan: ClockPlan) -> None:
    add_scatter(
        figure,
        [100 * point.max_slowdown for point in plan.front],
        [100 * point.saving for point in plan.front],
        2,
        mode="lines+markers",
        line_color=COLORS["metered"],
        text=[f"{point.clock_mhz} MHz" for point in plan.front],
        hovertemplate="%{x:.3g} % more time: %{y:.3g} % saved at %{text}<extra></extra>",
    )
    add_scatter(
        figure,
        [100 * plan.max_slowdown],
        [100 * plan.savings.together.value],
        2,
        mode="markers",
        marker={"color": COLORS["best"], "symbol": "star", "size": 12},
        hovertemplate=f"this plan: %{{y:.3g}} % saved at {plan.clock_mhz} MHz<extra></extra>",
    )
    figure.update_xaxes(title_text="more time allowed [%]", rangemode="tozero", row=1, col=2)
    figure.update_yaxes(title_text="energy saved [%]", rangemode="tozero", row=1, col=2)


def _add_layers(figure: Any, names: Sequence[str], shares: Sequence[float]) -> None:
    # Numbers, not names, place the bars: two shortened names may be equal.
    places = list(range(len(names)))
    figure.add_trace(
        import_plotly().Bar(
            x=round_column(100 * np.array(shares)),
            y=places,
            orientation="h",
            marker_color=COLORS["metered"],
            text=[escape_text(name) for name in names],
            textposition="none",
            hovertemplate="%{text}: %{x:.3g} % of the model's energy<extra></extra>",
        ),
        row=2,
        col=1,
    )
    labels = [escape_text(_shorten(name)) for name in names]
    figure.update_yaxes(tickvals=places, ticktext=labels, autorange="reversed", row=2, col=1)
    figure.update_xaxes(title_text="share of the model's energy saved [%]", row=2, col=1)


def _shorten(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
