"""The tabs of the page: texts, pictures, counts, roofline, path, place in the space, and the tuner."""

from __future__ import annotations

import difflib
import html
import math
from collections.abc import Callable
from typing import Any

from nicegui import ui

from ekc.errors import EkcError
from ekc.explorer.figures import COUNTS, StepFigures, compute_share_below
from ekc.explorer.session import Explorer
from ekc.ir.drawing.draw import PICTURE_NAMES
from ekc.ir.schedule.schedule import Schedule
from ekc.report.theme import COLORS, import_plotly
from ekc.search.data.result import get_arithmetic_type
from ekc.search.data.trial import Trial
from ekc.tables import format_rounded

TRIALS = (16, 64, 256)
"""Trials that the page offers for the tuner."""
Act = Callable[..., object]


def format_time(seconds: float | None) -> str:
    """Microseconds with four digits: `518.5 us`."""
    return "-" if seconds is None else f"{format_rounded(seconds * 1e6, 4)} us"


def format_energy(joules: float | None) -> str:
    """Millijoules with four digits: `51.13 mJ`."""
    return "-" if joules is None else f"{format_rounded(joules * 1e3, 4)} mJ"


def format_change(after: float | None, before: float | None) -> str:
    """A ratio as text: `-28 %`, or `x 3.1` where it is large; "" where one side is unknown."""
    if not after or not before:
        return ""
    ratio = after / before
    return f"x {format_rounded(ratio, 3)}" if ratio >= 2 else f"{100 * (ratio - 1):+z.1f} %"


def format_count(value: float) -> str:
    """A count with up to four digits and a thousands separator."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == round(value) else format_rounded(value, 4)


def show_code(text: str, before: str | None) -> None:
    """A text with the lines marked that the text before has not."""
    new, old = text.splitlines(), (before or "").splitlines()
    marked: set[int] = set()
    if before is not None:
        for tag, _, _, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            marked |= set(range(start, end)) if tag in ("insert", "replace") else set()
    lines = [
        f'<span class="{"new" if number in marked else "old"}">{html.escape(line) or " "}</span>'
        for number, line in enumerate(new)
    ]
    if before is not None:
        ui.label(f"{len(marked)} lines changed by the last step" if marked else "no line changed").classes(
            "note"
        )
    ui.html(f'<pre class="code">{"".join(lines)}</pre>', sanitize=False).classes("w-full")


def show_program(explorer: Explorer) -> None:
    """The Program, with what the last step changed."""
    before = explorer.previous
    show_code(str(explorer.schedule), None if before is None else str(before))


def show_cuda(explorer: Explorer) -> None:
    """The CUDA text, with what the last step changed; the header that names the schedule is left out."""
    after, before = explorer.get_figures(explorer.schedule), explorer.get_figures(explorer.previous)
    if after is None:
        ui.label("compiling").classes("note")
    elif not after.cuda_source:
        ui.label(after.failure).classes("note")
    else:
        resources = ", ".join(f"{name}: {format_count(value)}" for name, value in after.resources.items())
        ui.label(f"{after.source}; {resources}").classes("note")
        show_code(
            _strip_header(after.cuda_source),
            _strip_header(before.cuda_source) if before and before.cuda_source else None,
        )


def _strip_header(text: str) -> str:
    lines = text.splitlines()
    first = next((n for n, line in enumerate(lines) if not line.startswith("//") and line.strip()), 0)
    return "\n".join(lines[first:])


def show_picture(explorer: Explorer, name: str, choose: Callable[[str], None]) -> None:
    """A picture of the schedule as SVG, and the choice of pictures."""
    ui.select(list(PICTURE_NAMES), value=name, label="picture", on_change=lambda e: choose(e.value)).props(
        "dense outlined options-dense"
    ).classes("w-48")
    _draw_picture(explorer.schedule, name)
    if explorer.previous is not None:
        with ui.expansion("before the last step").props("dense").classes("w-full"):
            _draw_picture(explorer.previous, name)


def _draw_picture(schedule: Schedule, name: str) -> None:
    try:
        ui.html(schedule.draw(name), sanitize=False).classes("picture w-full")
    except EkcError as problem:
        ui.label(str(problem)).classes("note")


def show_counts(explorer: Explorer) -> None:
    """Counted work and resources, before and after the last step, and where the joules go."""
    after, before = explorer.get_figures(explorer.schedule), explorer.get_figures(explorer.previous)
    if after is None:
        ui.label("compiling").classes("note")
        return
    before = before or StepFigures("", "")
    rows = [(label, before.counts.get(name), after.counts.get(name)) for name, label in COUNTS.items()]
    rows += [(name, before.resources.get(name), value) for name, value in after.resources.items()]
    ui.label("Work of one call, from the analysis of the schedule; resources by ptxas").classes("title")
    _show_table(("", "before", "after", "change"), [_format_row(*row) for row in rows])
    if after.causes:
        ui.label(f"Where the joules of one call go: counted in the kernel, {after.source}").classes("title")
        old = {cause: joules for cause, _, _, joules in before.causes}
        _show_table(
            ("cause", "before", "after", "change"),
            [
                (name, format_energy(old.get(name)), format_energy(j), format_change(j, old.get(name)))
                for name, _, _, j in sorted(after.causes, key=lambda cause: -cause[3])
                if j > 0
            ],
        )


def _format_row(label: str, before: float | None, after: float | None) -> tuple[str, ...]:
    texts = ("-" if x is None else format_count(x) for x in (before, after))
    return (label, *texts, format_change(after, before) if after != before else "")


def _show_table(headers: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    head = "".join(f"<th>{html.escape(h)}</th>" for h in headers)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    ui.html(f'<table class="figures"><tr>{head}</tr>{body}</table>', sanitize=False).classes("w-full")


def _make_layout(title: str, x: str, y: str) -> dict[str, Any]:
    axis = {"type": "log", "gridcolor": "#80808040", "zeroline": False, "linecolor": "#808080"}
    return {
        "title": {"text": title, "font": {"size": 14}},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 60, "r": 16, "t": 44, "b": 48},
        "xaxis": axis | {"title": {"text": x}},
        "yaxis": axis | {"title": {"text": y}},
        "legend": {"orientation": "h", "y": -0.2},
    }


def _show_figure(traces: list[Any], layout: dict[str, Any]) -> None:
    # NiceGUI would resize a figure whose tab was left before it was drawn, which is an error in Plotly.
    config = {"displayModeBar": False, "responsive": False}
    ui.plotly({"data": traces, "layout": layout, "config": config}).classes("figure w-full")


def show_roofline(explorer: Explorer) -> None:
    """The roofline of the device, with the schedules of the path."""
    go, peaks, op = import_plotly(), explorer.device.peaks, explorer.schedule.op
    kind = get_arithmetic_type(op)
    ceilings = {"float32 peak": peaks.fp32_flops}
    ceilings[f"{kind} peak"] = peaks.flops_by_type.get(kind, peaks.fp32_flops)
    points = []
    for number, schedule in enumerate(explorer.path.schedules):
        found = explorer.get_figures(schedule)
        if found and found.latency_s and found.counts.get("dram_bytes"):
            text = explorer.path.moves[number - 1].text if number else "plain loops"
            points.append((op.flops / found.counts["dram_bytes"], op.flops / found.latency_s / 1e9, text))
    if not points:
        ui.label("compiling").classes("note")
        return
    low = min(min(p[0] for p in points), 0.5) / 2
    high = max(*(p[0] for p in points), peaks.fp32_flops / peaks.dram_bytes_per_s) * 8
    traces = []
    for name, flops in dict(sorted(ceilings.items(), key=lambda c: c[1])).items():
        ridge = flops / peaks.dram_bytes_per_s
        xs = [low, ridge, max(high, 2 * ridge)]
        ys = [min(flops, x * peaks.dram_bytes_per_s) / 1e9 for x in xs]
        traces.append(go.Scatter(x=xs, y=ys, mode="lines", name=name, line={"color": COLORS["naive"]}))
    columns = [list(column) for column in zip(*points, strict=True)]
    traces.append(
        go.Scatter(
            x=columns[0],
            y=columns[1],
            text=columns[2],
            mode="lines+markers",
            name="path",
            line={"color": COLORS["metered"]},
        )
    )
    if len(points) > 1:
        traces.append(_make_point("before", *points[-2], COLORS["fastest"]))
    traces.append(_make_point("after", *points[-1], COLORS["best"]))
    title = f"Roofline of {explorer.device.label}"
    _show_figure(
        [t.to_plotly_json() for t in traces],
        _make_layout(title, "operations per byte of DRAM traffic (analysis)", "GFLOP/s"),
    )


def _make_point(name: str, x: float, y: float, text: str, color: str) -> Any:
    marker = {"size": 14, "color": color, "symbol": "diamond"}
    return import_plotly().Scatter(x=[x], y=[y], text=[text], mode="markers", name=name, marker=marker)


def show_path(explorer: Explorer, act: Act) -> None:
    """The moves so far with their figures, and those that can be redone."""
    path = explorer.path
    with ui.element("div").classes("moves w-full"):
        for number, schedule in enumerate(path.schedules):
            found, is_last = explorer.get_figures(schedule), number == len(path.moves)
            with ui.row().classes("move w-full items-center no-wrap" + (" present" if is_last else "")):
                ui.label(path.moves[number - 1].text if number else "plain loops").classes("step grow")
                ui.label(format_time(found.latency_s if found else None)).classes("num")
                ui.label(format_energy(found.energy_j if found else None)).classes("num")
                back = ui.button(icon="undo", on_click=lambda n=number: act(explorer.go_back, n))
                back.props("flat dense size=sm").set_enabled(not is_last)
                back.tooltip("go back to here; later steps can be redone")
                drop = ui.button(icon="close", on_click=lambda n=number: act(explorer.remove, n - 1))
                drop.props("flat dense size=sm").set_enabled(number > 0)
                drop.tooltip("take this step out and keep the later ones, if they are legal without it")
    reason = explorer.explain_redo()
    for number, move in enumerate(reversed(path.undone)):
        with ui.row().classes("move undone w-full items-center no-wrap"):
            ui.label(move.text).classes("step grow")
            if number == 0:
                redo = ui.button("redo", on_click=lambda: act(explorer.redo)).props("flat dense size=sm")
                redo.set_enabled(not reason)
                ui.button("forget", on_click=lambda: act(explorer.drop_undone)).props("flat dense size=sm")
                ui.label(f"cannot be redone here: {reason}" if reason else "").classes("worse text-xs")
    if not explorer.is_recorded:
        _show_errors(explorer)


def _show_errors(explorer: Explorer) -> None:
    texts = []
    for name, label in (("latency_s", "time"), ("energy_j", "joules")):
        errors = sorted(map(abs, explorer.list_errors(name)))  # type: ignore[arg-type]
        if errors:
            texts.append(f"{label} {100 * errors[len(errors) // 2]:.0f} %")
    if texts:
        ui.label(f"Median error of the estimates of the steps on this path: {', '.join(texts)}").classes(
            "note"
        )


def show_space(explorer: Explorer) -> None:
    """The present schedule among schedules drawn from the space of the search."""
    sample, now = explorer.sample, explorer.get_figures(explorer.schedule)
    if sample is None:
        reason = "a recording has no other schedules" if explorer.is_recorded else "drawing schedules"
        ui.label(reason).classes("note")
        return
    go = import_plotly()
    drawn = {"size": 5, "color": COLORS["predicted"], "opacity": 0.7}
    traces = [
        go.Scatter(
            x=(sample.latency_s * 1e6).tolist(),
            y=(sample.energy_j * 1e3).tolist(),
            mode="markers",
            name=f"{len(sample.latency_s)} drawn, estimated",
            marker=drawn,
        )
    ]
    known = [f for f in map(explorer.get_figures, explorer.path.schedules) if f and f.estimated_latency_s]
    xs = [(f.estimated_latency_s or math.nan) * 1e6 for f in known]
    ys = [(f.estimated_energy_j or math.nan) * 1e3 for f in known]
    line = {"color": COLORS["metered"]}
    traces.append(go.Scatter(x=xs, y=ys, mode="lines+markers", name="path, estimated", line=line))
    if now and now.estimated_latency_s and now.estimated_energy_j:
        share_t = 1 - compute_share_below(now.estimated_latency_s, sample.latency_s)
        share_e = 1 - compute_share_below(now.estimated_energy_j, sample.energy_j)
        traces.append(_make_point("present, estimated", xs[-1], ys[-1], "present", COLORS["best"]))
        ui.label(
            f"By estimate the present schedule is faster than {100 * share_t:.0f} % of the drawn schedules "
            f"and takes less energy than {100 * share_e:.0f} % of them."
        ).classes("note")
    title = f"Time and energy of a call, {explorer.device.label}, estimated"
    _show_figure([t.to_plotly_json() for t in traces], _make_layout(title, "time [us]", "energy [mJ]"))


def show_tuner(explorer: Explorer, act: Act) -> None:
    """Start and stop the tuner, its progress, and its winner beside the present schedule."""
    state = explorer.tuner
    ui.label("The tuner searches from the present schedule, and from schedules of its own.").classes("note")
    with ui.row().classes("items-center"):
        trials = (
            ui.select(list(TRIALS), value=64, label="trials").props("dense outlined").classes("w-28 trials")
        )
        start = ui.button("Let the tuner finish", on_click=lambda: act(explorer.start_tuner, trials.value))
        start.set_enabled(state is None or not state.is_running)
        if state is not None and state.is_running:
            ui.button("Stop", on_click=explorer.stop_tuner).props("outline")
    if state is None:
        return
    if state.is_running:
        ui.linear_progress(state.tried / state.trials, show_value=False)
    ui.label(state.failure or state.line).classes("note")
    if state.result is not None:
        _show_winner(explorer, act, state.start, state.result.best)


def _show_winner(explorer: Explorer, act: Act, start: Schedule, best: Trial) -> None:
    now = explorer.get_figures(start)
    latency, energy = (now.latency_s, now.energy_j) if now else (None, None)
    headers = ("", "where it began", f"winner, {explorer.device.label}", "change")
    _show_table(
        headers,
        [
            (
                "time",
                format_time(latency),
                format_time(best.latency_s),
                format_change(best.latency_s, latency),
            ),
            (
                "joules",
                format_energy(energy),
                format_energy(best.energy_j),
                format_change(best.energy_j, energy),
            ),
        ],
    )
    ui.button(
        "Go to the winner", on_click=lambda: act(explorer.move_to, best.schedule, "winner of the tuner")
    )
    show_code(best.schedule.to_python(), start.to_python())
