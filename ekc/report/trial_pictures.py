"""Pictures of the trials of a run: latency against energy, progress, roofline, map of the space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.devices.device import Peaks
from ekc.report.run_data import Array, Flags, NamedTrial, RunData, TrialColumns
from ekc.report.theme import (
    COLORS,
    LOG_AXIS,
    SYMBOLS,
    add_scatter,
    choose_axis,
    choose_scale,
    escape_text,
    make_panels,
    round_column,
    style_figure,
)
from ekc.search.data.result import get_arithmetic_type
from ekc.tables import count_nouns

Place = Callable[[NamedTrial], tuple[float, float]]
"""Coordinates of a named trial in a panel."""
ZOOM = 4.0
"""Width of the panel near the fastest schedule, in allowed slowdowns."""
MIN_ZOOM = 0.1
"""Least width of that panel, as a share of the least latency."""


def draw_front(run: RunData) -> Any:
    """Draw energy against latency: all trials, and those near the fastest with the limit and the front."""
    figure = make_panels(1, 2, ("all trials", "near the fastest"), horizontal_spacing=0.11)
    seconds, unit_s = choose_scale(run.trials.latency_s, "s")
    joules, unit_j = choose_scale(run.trials.energy_j, "J")
    for column in (1, 2):
        _add_trials(figure, run, seconds, joules, column)
        _add_front(figure, run, seconds, joules, column)
        _add_named(
            figure, run.named, column, lambda t: (t.latency_s / seconds, t.energy_j / joules), unit_s, unit_j
        )
    figure.update_xaxes(title_text=f"latency [{unit_s}]")
    figure.update_yaxes(title_text=f"energy of a call [{unit_j}]", col=1)
    trials, named = run.trials, run.named.values()
    latencies = np.append(trials.latency_s[np.isfinite(trials.energy_j)], [t.latency_s for t in named])
    figure.update_xaxes(**choose_axis(latencies), col=1)
    figure.update_yaxes(**choose_axis(np.append(trials.energy_j, [t.energy_j for t in named])), col=1)
    _zoom_to_limit(figure, run, seconds, joules)
    return style_figure(
        figure, "Latency and energy of all trials", describe_counts(run), run.data.device.simulated, 480
    )


def describe_counts(run: RunData) -> str:
    """Count the trials by what is known of them."""
    trials = run.trials
    others = trials.ok & ~trials.metered
    predicted = int((others & np.isfinite(trials.energy_j)).sum())
    counts = {
        "metered": int(trials.metered.sum()),
        "predicted": predicted,
        "only timed": int(others.sum()) - predicted,
        "failed": len(trials) - int(trials.ok.sum()),
    }
    parts = [f"{count} {name}" for name, count in counts.items() if count or name != "only timed"]
    return f"{escape_text(run.data.device.label)}: {', '.join([count_nouns(len(trials), 'trial'), *parts])}"


def describe_trials(run: RunData, rows: NDArray[np.intp]) -> list[str]:
    """Describe trials for a hover text: number, structure, digest."""
    some = [(i + 1, run.data.trials[i]) for i in rows.tolist()]
    return [f"trial {number}, {escape_text(t.structure)}, {t.digest[:8]}" for number, t in some]


def _add_trials(figure: Any, run: RunData, seconds: float, joules: float, column: int) -> None:
    trials = run.trials
    known = trials.ok & np.isfinite(trials.energy_j)
    for name, chosen in (("predicted", known & ~trials.metered), ("metered", known & trials.metered)):
        error: dict[str, Any] = {}
        if name == "metered":
            high, low = trials.energy_high_j - trials.energy_j, trials.energy_j - trials.energy_low_j
            error["error_y"] = {
                "array": round_column(high[chosen] / joules),
                "arrayminus": round_column(low[chosen] / joules),
                "thickness": 1,
                "width": 0,
            }
        add_scatter(
            figure,
            trials.latency_s[chosen] / seconds,
            trials.energy_j[chosen] / joules,
            column,
            mode="markers",
            name=name,
            legendgroup=name,
            showlegend=column == 1,
            text=describe_trials(run, np.flatnonzero(chosen)),
            hovertemplate="%{text}<br>%{x:.4g}, %{y:.4g} (" + name + ")<extra></extra>",
            marker={
                "color": COLORS[name],
                "size": 6,
                "opacity": 0.85,
                "symbol": "circle" if name == "metered" else "circle-open",
            },
            **error,
        )


def compute_front(trials: TrialColumns) -> NDArray[np.intp]:
    """Compute the Pareto front of metered trials: indices, fastest first."""
    rows = np.flatnonzero(trials.ok & trials.metered & np.isfinite(trials.energy_j))
    rows = rows[np.lexsort((trials.energy_j[rows], trials.latency_s[rows]))]
    least = np.minimum.accumulate(np.concatenate([[np.inf], trials.energy_j[rows]]))
    return rows[trials.energy_j[rows] < least[:-1]]


def _add_front(figure: Any, run: RunData, seconds: float, joules: float, column: int) -> None:
    rows = compute_front(run.trials)
    add_scatter(
        figure,
        run.trials.latency_s[rows] / seconds,
        run.trials.energy_j[rows] / joules,
        column,
        mode="lines",
        line={"color": COLORS["metered"], "width": 1.5, "shape": "hv"},
        name="Pareto front of the metered",
        legendgroup="front",
        showlegend=column == 1,
        hoverinfo="skip",
    )


def _add_named(
    figure: Any, named: dict[str, NamedTrial], column: int, place: Place, unit_x: str, unit_y: str
) -> None:
    """Mark best, fastest and naive. `place`: coordinates of one of them."""
    # The last is on top, and the best may be the fastest too.
    for role, trial in reversed(named.items()):
        x, y = place(trial)
        if not (np.isfinite(x) and np.isfinite(y)):
            continue
        how = "metered" if trial.metered else "predicted"
        add_scatter(
            figure,
            np.array([x]),
            np.array([y]),
            column,
            mode="markers",
            name=role,
            legendgroup=role,
            showlegend=column == 1,
            text=[f"{role}, {trial.digest[:8]} ({how})"],
            hovertemplate=f"%{{text}}<br>%{{x:.4g}} {unit_x}, %{{y:.4g}} {unit_y}<extra></extra>",
            marker={
                "color": COLORS[role],
                "symbol": SYMBOLS[role],
                "size": 15 if role == "best" else 11,
                "line": {"width": 1, "color": "white"},
            },
        )


def _zoom_to_limit(figure: Any, run: RunData, seconds: float, joules: float) -> None:
    """Show the trials near the fastest in the second panel, with the limit of the slowdown."""
    fastest = run.named.get("fastest")
    if fastest is None:
        return
    trials = run.trials
    limit_s = fastest.latency_s * (1 + run.data.max_slowdown)
    slowest = max(np.nanmax(trials.latency_s), limit_s, fastest.latency_s * (1 + MIN_ZOOM))
    high = min(fastest.latency_s * (1 + max(ZOOM * run.data.max_slowdown, MIN_ZOOM)), 1.02 * slowest)
    low = fastest.latency_s - 0.08 * (high - fastest.latency_s)
    figure.update_xaxes(range=[low / seconds, high / seconds], col=2)
    near = trials.ok & (trials.latency_s <= high) & np.isfinite(trials.energy_j)
    if near.any():
        lows = np.fmin(trials.energy_j, trials.energy_low_j)[near]
        highs = np.fmax(trials.energy_j, trials.energy_high_j)[near]
        least, most = lows.min() / joules, highs.max() / joules
        pad = 0.08 * (most - least) or 0.05 * most
        figure.update_yaxes(range=[least - pad, most + pad], col=2)
    if run.data.objective != "latency":
        figure.add_vline(
            x=limit_s / seconds,
            line={"color": COLORS["limit"], "dash": "dash", "width": 1.5},
            annotation_text=f"limit: {100 * run.data.max_slowdown:g} % slower",
            annotation_font_color=COLORS["limit"],
            annotation_position="top right",
            annotation_xshift=4,
            row=1,
            col=2,
        )


def draw_progress(run: RunData) -> Any:
    """Draw the figures of the trials in their order, and over the seconds of metering."""
    trials = run.trials
    is_energy = run.data.objective != "latency" and bool(np.isfinite(trials.energy_j).any())
    values, unit = (trials.energy_j, "J") if is_energy else (trials.latency_s, "s")
    what = "energy of a call" if is_energy else "latency"
    scale, unit = choose_scale(values, unit)
    order = _sort_by_metering(trials)
    titles = ("over trials", "over seconds of metering")[: 2 if len(order) else 1]
    figure = make_panels(1, len(titles), titles, horizontal_spacing=0.11)
    numbers = np.arange(1, len(trials) + 1, dtype=np.float64)
    others = "predicted" if is_energy else "not metered"
    for name, chosen in ((others, trials.ok & ~trials.metered), ("metered", trials.ok & trials.metered)):
        _add_points(figure, run, chosen & np.isfinite(values), numbers, values / scale, name, 1)
    costs = values * trials.latency_s if is_energy and run.data.objective == "edp" else values
    max_slowdown = run.data.max_slowdown if is_energy else np.inf
    best = compute_best_so_far(trials.latency_s, values, costs, trials.ok, max_slowdown)
    _add_steps(figure, numbers, best / scale, 1)
    if len(order):
        seconds, fastest_s = trials.latency_s[order], np.nanmin(trials.latency_s, initial=np.inf)
        metered_best = compute_best_so_far(
            seconds, values[order], costs[order], trials.ok[order], max_slowdown, fastest_s
        )
        _add_points(figure, run, order, trials.metering_s, values / scale, "metered", 2)
        _add_steps(figure, trials.metering_s[order], metered_best / scale, 2)
        figure.update_xaxes(title_text="metering [s]", rangemode="tozero", col=2)
    figure.update_xaxes(title_text="trial", col=1)
    figure.update_yaxes(title_text=f"{what} [{unit}]", col=1)
    outside = _limit_heights(figure, values / scale, best / scale)
    note = f"; above the panels: {count_nouns(outside, 'trial')}" if outside else ""
    if (np.diff(best[np.isfinite(best)]) > 0).any() and run.data.objective != "edp":
        note += (
            f";<br>the line rises where a faster kernel is found: the choice is at most "
            f"{100 * run.data.max_slowdown:g} % slower than the fastest"
        )
    return style_figure(
        figure, "Progress of the search", f"{describe_counts(run)}{note}", run.data.device.simulated, 460
    )


def _sort_by_metering(trials: TrialColumns) -> NDArray[np.intp]:
    """Sort the metered trials by the seconds of metering until then: indices."""
    rows = np.flatnonzero(trials.metered & np.isfinite(trials.metering_s))
    return rows[np.argsort(trials.metering_s[rows], kind="stable")]


LEAST_HEIGHT = 1.2
"""Top of the panels of progress, as a multiple of the least value, at least."""


def _limit_heights(figure: Any, values: Array, best: Array) -> int:
    """Limit the vertical axes to the values that were the best so far, and to half of all at least. Returns
    the number of values above."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0
    least = float(finite.min())
    top = float(min(finite.max(), max(1.05 * np.nanmax(best), LEAST_HEIGHT * least, np.median(finite))))
    pad = 0.06 * (top - least) or 0.05 * top
    figure.update_yaxes(range=[least - pad, top + pad])
    return int((finite > top).sum())


def compute_best_so_far(
    latency_s: Array,
    values: Array,
    costs: Array,
    ok: Flags,
    max_slowdown: float,
    fastest_s: float = np.inf,
) -> Array:
    """Find the value of least cost so far among the trials within the slowdown of the fastest so far; NaN
    before the first. `fastest_s`: latency of a fastest that is known from the start."""
    times = np.where(ok, latency_s, np.inf)
    limits = np.minimum.accumulate(np.minimum(times, fastest_s)) * (1 + max_slowdown)
    rows = np.arange(len(times))
    # [after, trial]: whether the trial was tried by then and is within the limit of then.
    eligible = (rows[None, :] <= rows[:, None]) & (times[None, :] <= limits[:, None]) & np.isfinite(values)
    if not len(times):
        return np.empty(0)
    chosen = np.where(eligible, costs[None, :], np.inf).argmin(axis=1)
    return np.asarray(np.where(eligible[rows, chosen], values[chosen], np.nan))


def _add_points(
    figure: Any, run: RunData, chosen: NDArray[Any], x: Array, y: Array, name: str, column: int
) -> None:
    """Add chosen trials (flags or row numbers) as points."""
    rows = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
    add_scatter(
        figure,
        x[rows],
        y[rows],
        column,
        mode="markers",
        name=name,
        legendgroup=name,
        showlegend=column == 1,
        text=describe_trials(run, rows),
        hovertemplate="%{text}<br>%{y:.4g}<extra></extra>",
        marker={
            "color": COLORS["metered" if name == "metered" else "predicted"],
            "size": 5,
            "symbol": "circle" if name == "metered" else "circle-open",
        },
    )


def _add_steps(figure: Any, x: Array, y: Array, column: int) -> None:
    add_scatter(
        figure,
        x,
        y,
        column,
        mode="lines",
        line={"shape": "hv", "color": COLORS["best"], "width": 2},
        name="best so far",
        legendgroup="so far",
        showlegend=column == 1,
        hovertemplate="best so far: %{y:.4g}<extra></extra>",
    )


def draw_roofline(run: RunData) -> Any:
    """Draw speed and operations per joule over the operations per byte of device memory, with the roofs."""
    peaks, trials = run.data.device.peaks, run.trials
    assert peaks is not None  # otherwise the picture is in `run.missing`
    element_type = get_arithmetic_type(run.data.op)
    unit = "OP" if element_type.startswith("int") else "FLOP"
    figure = make_panels(1, 2, ("time", "energy"), horizontal_spacing=0.11)
    intensity = run.data.op.flops / trials.dram_bytes
    _add_roofs(figure, run, peaks, unit, intensity)
    for column, cost in ((1, trials.latency_s), (2, trials.energy_j)):
        rate = run.data.op.flops / cost / GIGA
        known = np.isfinite(rate) & np.isfinite(intensity)
        for name, chosen in (("not metered", ~trials.metered), ("metered", trials.metered)):
            _add_points(figure, run, known & chosen, intensity, rate, name, column)
        per = "s" if column == 1 else "J"
        _add_named(figure, run.named, column, _make_roofline_place(run, per), "", f"G{unit}/{per}")
    figure.update_xaxes(title_text=f"{unit} per byte of device memory", **LOG_AXIS)
    figure.update_yaxes(**LOG_AXIS)
    figure.update_yaxes(title_text=f"G{unit}/s", col=1)
    figure.update_yaxes(title_text=f"G{unit}/J", col=2)
    subtitle = (
        f"{escape_text(run.data.device.label)}, {element_type}: "
        f"roofs by {escape_text(peaks.source or 'the device')};"
        "<br>bytes by the analysis; a warm L2 may serve a part of them"
    )
    style_figure(figure, "Roofline", subtitle, run.data.device.simulated, 510)
    return figure.update_layout(margin_b=124)


GIGA = 1e9


def _make_roofline_place(run: RunData, per: str) -> Place:
    """Make the function that places a named trial in the panel of operations per second or per joule."""

    def place(trial: NamedTrial) -> tuple[float, float]:
        cost = trial.latency_s if per == "s" else trial.energy_j
        return run.data.op.flops / trial.dram_bytes, run.data.op.flops / cost / GIGA

    return place


def _add_roofs(figure: Any, run: RunData, peaks: Peaks, unit: str, intensity: Array) -> None:
    """Add the roof of the time, and those of the energy: nothing is above the one at idle power."""
    op = run.data.op
    flops_per_s = peaks.flops_by_type[get_arithmetic_type(op)]
    cap_w, idle_w = peaks.board_power_w, run.data.spent.idle_w
    ridge = flops_per_s / peaks.dram_bytes_per_s
    known = [
        *intensity[np.isfinite(intensity)],
        *(op.flops / t.dram_bytes for t in run.named.values()),
        ridge,
    ]
    ends = np.array([np.nanmin(known) / 4, ridge, np.nanmax(known) * 4])
    heights = np.minimum(ends * peaks.dram_bytes_per_s, flops_per_s) / GIGA
    speeds = f"{flops_per_s / 1e12:.3g} T{unit}/s, {peaks.dram_bytes_per_s / GIGA:,.0f} GB/s"
    lines = [
        (1, 1.0, f"roof: {speeds}", "solid"),
        (2, cap_w, f"on the roof at the power cap, {cap_w:g} W", "dash"),
        (2, idle_w, f"on the roof at idle power, {idle_w:.0f} W: no kernel is above", "solid"),
    ]
    for column, divisor, name, dash in lines:
        if np.isfinite(divisor) and divisor > 0:
            add_scatter(
                figure,
                ends,
                heights / divisor,
                column,
                mode="lines",
                name=name,
                line={
                    "color": COLORS["limit"] if column == 1 else COLORS["other"],
                    "dash": dash,
                    "width": 2,
                },
                hovertemplate="%{y:.4g}<extra></extra>",
            )
