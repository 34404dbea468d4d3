"""Pictures of models: predictions, importance of decisions, energy by cause, map of the space."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import numpy as np

from ekc.report.run_data import Array, Flags, Importance, RunData
from ekc.report.theme import (
    COLORS,
    add_scatter,
    choose_axis,
    choose_scale,
    escape_text,
    import_plotly,
    make_panels,
    make_room_for_labels,
    round_column,
    style_figure,
)
from ekc.report.trial_pictures import describe_trials

NORMAL_95 = 1.96
"""Standard deviations on each side of the mean in a 95 % interval of a normal distribution."""


def draw_predicted(run: RunData) -> Any:
    """Draw predicted against metered energy, of the model and of the trivial predictors."""
    records = run.data.predictions
    metered, model, constant_power, two_numbers, std = (
        np.array([getattr(one, name) for one in records])
        for name in ("measured_j", "predicted_j", "constant_j", "two_number_j", "std")
    )
    low, high = np.array([astuple(one.measured_interval_j) for one in records]).T
    scale, unit = choose_scale(metered, "J")
    predictors = (
        ("energy model", model, "metered"),
        ("latency x power", constant_power, "limit"),
        ("P0 t + E0", two_numbers, "other"),
    )
    titles = [f"{name}: error {_format_error(p, metered)}" for name, p, _ in predictors]
    figure = make_panels(1, 3, titles, horizontal_spacing=0.05, shared_yaxes=True)
    values = np.concatenate([metered, *(p for _, p, _ in predictors)]) / scale
    ends = np.array([values.min() * 0.94, values.max() * 1.06])
    diagonal = {"color": COLORS["naive"], "width": 1.2, "dash": "dash"}
    for column, (name, predicted, role) in enumerate(predictors, 1):
        bars: dict[str, Any] = {"error_x": _make_bars(metered, low, high, scale)}
        if column == 1:
            width = NORMAL_95 * std
            bars["error_y"] = _make_bars(model, model * np.exp(-width), model * np.exp(width), scale)
        add_scatter(
            figure,
            metered / scale,
            predicted / scale,
            column,
            mode="markers",
            name=name,
            text=[f"{i}, {one.digest[:8]}" for i, one in enumerate(records, 1)],
            hovertemplate="metering %{text}<br>metered %{x:.4g}, predicted %{y:.4g}<extra></extra>",
            marker={"color": COLORS[role], "size": 6},
            showlegend=False,
            **bars,
        )
        add_scatter(
            figure, ends, ends, column, mode="lines", line=diagonal, showlegend=False, hoverinfo="skip"
        )
    axis = choose_axis(ends)
    axis["range"] = (np.log10(ends) if axis else ends).tolist()
    figure.update_xaxes(title_text=f"metered [{unit}]", **axis)
    figure.update_yaxes(**axis)
    figure.update_yaxes(title_text=f"predicted [{unit}]", col=1)
    subtitle = (
        f"{escape_text(run.data.device.label)}: predicted {run.predicted};"
        "<br>errors are medians; bars are 95 % intervals"
    )
    style_figure(figure, "Energy predicted and metered", subtitle, run.data.device.simulated, 400)
    return figure.update_layout(margin_b=60)


def _format_error(predicted: Array, metered: Array) -> str:
    return f"{100 * float(np.median(np.abs(predicted / metered - 1))):.1f} %"


def _make_bars(values: Array, low: Array, high: Array, scale: float) -> dict[str, Any]:
    above, below = round_column((high - values) / scale), round_column((values - low) / scale)
    return {"array": above, "arrayminus": below, "thickness": 0.8, "width": 0}


FIGURE_COLORS = {"energy": COLORS["best"], "latency": COLORS["metered"]}
MAX_BARS = 8
LOG10_OF_4 = 0.60206


def draw_importance(run: RunData) -> Any:
    """Draw which decisions and features move the models of energy and latency, with the models' errors."""
    kinds = list(dict.fromkeys(i.inputs for i in run.importances))
    curves = [_choose_curves(run.importances, kind) for kind in kinds]
    titles = [
        escape_text(title)
        for kind, names in zip(kinds, curves, strict=True)
        for title in (f"importance of {kind}", *(*names, "", "")[:2])
    ]
    figure = make_panels(
        len(kinds),
        3,
        titles,
        column_widths=[0.5, 0.25, 0.25],
        vertical_spacing=0.16,
        horizontal_spacing=0.06,
    )
    for row, (kind, names) in enumerate(zip(kinds, curves, strict=True), 1):
        _add_bars(figure, [i for i in run.importances if i.inputs == kind], row)
        for column, name in enumerate(names, 2):
            _add_dependence(figure, run.importances, kind, name, row, column)
    figure.update_xaxes(title_text="mean size of the effect on ln(figure)", rangemode="tozero", col=1)
    figure.update_layout(barmode="group", bargap=0.25)
    subtitle = _describe_models(run.importances)
    style_figure(
        figure,
        "Decisions and features that matter",
        subtitle,
        run.data.device.simulated,
        200 + 340 * len(kinds),
    )
    figure.update_layout(margin_t=118 + 15 * len(run.importances))
    return make_room_for_labels(figure, (name for i in run.importances for name in i.names[:MAX_BARS]))


def _choose_curves(importances: tuple[Importance, ...], kind: str) -> list[str]:
    """Names of the two inputs of a kind with curves, those of the better model."""
    best = max((i for i in importances if i.inputs == kind), key=lambda i: i.explained)
    return [d.name for d in best.dependences[:2]]


def _describe_models(importances: tuple[Importance, ...]) -> str:
    """Describe how well each model predicts schedules that it did not learn from."""
    lines = []
    for i in importances:
        verdict = "" if i.is_useful else ": do not rely on it"
        lines.append(
            f"{i.figure} by {i.inputs}: {100 * max(i.explained, 0):.0f} % of the variance explained, "
            f"median error {100 * i.error:.1f} % ({i.rows} schedules){verdict}"
        )
    return (
        "Small panels: partial dependence, relative to the mean. On schedules that were not learned from:"
        "<br>" + "<br>".join(lines)
    )


def _add_bars(figure: Any, models: list[Importance], row: int) -> None:
    order = sorted(models, key=lambda i: -i.explained)
    names = list(dict.fromkeys(name for i in order for name in i.names[:MAX_BARS]))[:MAX_BARS][::-1]
    for i in order:
        effect = dict(zip(i.names, i.effect.tolist(), strict=True))
        name = i.figure if i.is_useful else f"{i.figure} (weak model)"
        color = FIGURE_COLORS[i.figure]
        figure.add_trace(
            import_plotly().Bar(
                y=[escape_text(n) for n in names],
                x=round_column(np.array([effect.get(n, 0.0) for n in names])),
                orientation="h",
                name=name,
                legendgroup=name,
                showlegend=not any(t.name == name for t in figure.data),
                marker={
                    "color": color if i.is_useful else "rgba(0,0,0,0)",
                    "line": {"color": color, "width": 1.2},
                },
                hovertemplate="%{y}: %{x:.3g}<extra>" + name + "</extra>",
            ),
            row=row,
            col=1,
        )


def _add_dependence(
    figure: Any, importances: tuple[Importance, ...], kind: str, name: str, row: int, column: int
) -> None:
    for i in importances:
        found = next((d for d in i.dependences if d.name == name), None)
        if i.inputs != kind or found is None:
            continue
        label = i.figure if i.is_useful else f"{i.figure} (weak model)"
        add_scatter(
            figure,
            found.values,
            found.relative,
            column,
            row=row,
            mode="lines+markers",
            legendgroup=label,
            showlegend=False,
            line={"color": FIGURE_COLORS[i.figure], "dash": "solid" if i.is_useful else "dot"},
            marker={"size": 5},
            hovertemplate="%{x:.4g}: %{y:.3g} times the mean<extra>" + i.figure + "</extra>",
        )
        if kind == "decisions" and found.values.min() > 0:
            figure.update_xaxes(type="log", dtick=LOG10_OF_4, row=row, col=column)
    title = "log2(1 + x)" if kind == "features" else "value"
    figure.update_xaxes(title_text=title, row=row, col=column)


def draw_energy(run: RunData) -> Any:
    """Draw the energy of best, fastest and naive by cause."""
    found = run.causes
    assert found is not None  # otherwise the picture is in `run.missing`
    near = [n for n, role in enumerate(found.roles) if role != "naive"]
    panels = [near, [n for n, role in enumerate(found.roles) if role == "naive"]]
    panels = [p for p in panels if p]
    titles = [" and ".join(_describe_total(run, n) for n in panel) for panel in panels]
    figure = make_panels(1, len(panels), titles, shared_yaxes=True, horizontal_spacing=0.04)
    names = [escape_text(c) for c in found.causes][::-1]
    for column, panel in enumerate(panels, 1):
        scale, unit = choose_scale(found.joules[panel].sum(axis=1), "J")
        for n in panel[::-1]:
            role = found.roles[n]
            share = found.joules[n] / found.joules[n].sum()
            figure.add_trace(
                import_plotly().Bar(
                    y=names,
                    x=round_column(found.joules[n][::-1] / scale),
                    orientation="h",
                    name=role,
                    legendrank=n,
                    marker={"color": COLORS[role]},
                    text=[f"{100 * s:.1f} %" for s in share[::-1].tolist()],
                    textposition="none",
                    hovertemplate=f"%{{y}}: %{{x:.4g}} {unit}, %{{text}}<extra>{role}</extra>",
                ),
                row=1,
                col=column,
            )
        figure.update_xaxes(title_text=f"energy of a call [{unit}]", col=column)
    figure.update_layout(barmode="group", bargap=0.25)
    subtitle = (
        f"{escape_text(run.data.device.label)}: by the model of the device, at the temperature that it "
        "settles at;<br>a metering has noise and starts at another temperature, so its energy differs"
    )
    style_figure(figure, "Energy by cause", subtitle, run.data.device.simulated, 560)
    return make_room_for_labels(figure, found.causes)


def _describe_total(run: RunData, number: int) -> str:
    assert run.causes is not None
    joules = run.causes.joules[number].sum()
    scale, unit = choose_scale(np.array([joules]), "J")
    return f"{run.causes.roles[number]} {joules / scale:.4g} {unit}"


def draw_explanation(run: RunData) -> Any:
    """Draw what the boosted model says of the energy of the best schedule against the fastest."""
    found = run.data.explanation
    assert found is not None  # otherwise the picture is in `run.missing`
    shown = found.list_shown()[::-1]
    names = [name.replace("_", " ") for name, _ in shown]
    percent = 100 * np.expm1(np.array([part for _, part in shown]))
    figure = make_panels(1, 1, ("",))
    figure.add_trace(
        import_plotly().Bar(
            y=names,
            x=round_column(percent),
            orientation="h",
            marker={"color": [COLORS["best" if p <= 0 else "fastest"] for p in percent]},
            hovertemplate="%{y}: %{x:+.3g} %<extra></extra>",
            showlegend=False,
        )
    )
    figure.update_xaxes(title_text="energy of the best against the fastest [%]")
    predicted, measured = (
        "unknown" if np.isnan(log) else f"{100 * np.expm1(log):+z.1f} %"
        for log in (found.predicted_log_ratio, found.measured_log_ratio)
    )
    subtitle = (
        f"{escape_text(run.data.device.label)}: SHAP values of the boosted model, and the analytic prior;"
        f"<br>together {predicted} before anything was measured; measured {measured}"
    )
    style_figure(figure, "Why this energy", subtitle, run.data.device.simulated, 420)
    return make_room_for_labels(figure, names)


def draw_space(run: RunData) -> Any:
    """Draw the trials by their decisions in two dimensions, colored by figure and by order."""
    space, trials = run.space, run.trials
    assert space is not None  # otherwise the picture is in `run.missing`
    is_energy = bool(np.isfinite(trials.energy_j).any())
    values, what = (trials.energy_j, "energy") if is_energy else (trials.latency_s, "latency")
    known = np.isfinite(values)
    relative = values / np.nanmin(values) if known.any() else values
    figure = make_panels(1, 2, (f"{what}, relative to the least", "order of trying"), horizontal_spacing=0.14)
    ticks = [v for v in (1, 1.5, 2, 3, 5, 10, 20, 50, 100) if v <= 1.05 * np.nanmax(relative, initial=1.0)]
    bars: tuple[dict[str, Any], ...] = (
        {"tickvals": np.log10(ticks).tolist(), "ticktext": [f"{v:g}x" for v in ticks], "x": 0.435},
        {"title": {"text": "trial"}, "x": 1.01},
    )
    _add_places(figure, run, known, np.log10(relative), 1, bars[0])
    _add_places(figure, run, known | True, np.arange(1, len(trials) + 1, dtype=np.float64), 2, bars[1])
    _mark_places(figure, run)
    x_share, y_share = (f"{100 * share:.0f} % of the variance" for share in space.shares)
    figure.update_xaxes(title_text=f"first component: {x_share}")
    figure.update_yaxes(title_text=f"second component: {y_share}", col=1)
    x_names, y_names = (escape_text(", ".join(names)) for names in (space.x_names, space.y_names))
    subtitle = (
        f"{escape_text(run.data.device.label)}: two principal components of {space.decision_count} decisions;"
        f"<br>most weight in the first: {x_names};<br>in the second: {y_names}"
    )
    style_figure(figure, "Map of the space", subtitle, run.data.device.simulated, 520)
    return figure.update_layout(margin_t=124)


def _add_places(
    figure: Any, run: RunData, chosen: Flags, color: Array, column: int, bar: dict[str, Any]
) -> None:
    """Add chosen trials at their places, colored by a column of numbers."""
    assert run.space is not None
    rows = np.flatnonzero(chosen)
    add_scatter(
        figure,
        run.space.x[rows],
        run.space.y[rows],
        column,
        mode="markers",
        text=describe_trials(run, rows),
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
        marker={
            "color": round_column(color[rows]),
            "colorscale": "Viridis",
            "reversescale": column == 1,
            "size": 7,
            "line": {"width": 0.4, "color": "rgba(128,128,128,0.8)"},
            "colorbar": bar | {"thickness": 10, "len": 0.9, "outlinewidth": 0},
        },
    )


def _mark_places(figure: Any, run: RunData) -> None:
    """Mark best and fastest on the map, if they are among the trials."""
    space = run.space
    assert space is not None
    row_by_digest = {digest: i for i, digest in enumerate(t.digest for t in run.data.trials)}
    for role, trial in reversed(run.named.items()):
        row = row_by_digest.get(trial.digest)
        if row is None:
            continue
        for column in (1, 2):
            add_scatter(
                figure,
                space.x[[row]],
                space.y[[row]],
                column,
                mode="markers",
                name=role,
                legendgroup=role,
                showlegend=column == 1,
                hovertemplate=f"{role}, {trial.digest[:8]}<extra></extra>",
                marker={
                    "symbol": "star-open" if role == "best" else "diamond-open",
                    "size": 17 if role == "best" else 14,
                    "color": COLORS[role],
                    "line": {"width": 2},
                },
            )
