"""A page with a plot of a governed job: clock, power and length of an iteration over minutes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from ekc.errors import InvalidInput
from ekc.governor.event_records import Applied, Measured, Shifted
from ekc.governor.live.job_report import GovernorLog
from ekc.report.theme import (
    COLORS,
    format_figure_page,
    import_plotly,
    make_panels,
    round_column,
    style_figure,
)

SUFFIX = ".html"
_PANELS = ("SM clock [MHz]", "power of the whole board [W]", "length of an iteration [s]")


def check_plot_file(file: Path) -> None:
    """Raises `InvalidInput` before the job starts if no plot could be written after it."""
    if importlib.util.find_spec("plotly") is None:
        raise InvalidInput("--plot needs plotly: pip install 'ekc[plot]', or leave --plot out")
    if file.suffix != SUFFIX:
        raise InvalidInput(f"--plot {file}: the plot is a page; name it {file.stem or 'job'}{SUFFIX}")
    if not file.absolute().parent.is_dir():
        raise InvalidInput(f"--plot {file}: there is no folder {file.parent}")
    if file.is_dir():
        raise InvalidInput(f"--plot {file}: it is a folder; name a file in it, such as {file / 'job.html'}")


def plot_log(log: GovernorLog, file: Path) -> None:
    """Write the page, which needs no network. Raises `InvalidInput` as `check_plot_file` does."""
    check_plot_file(file)
    file.write_text(format_figure_page(draw_job(log), log.name), encoding="utf-8")


def draw_job(log: GovernorLog) -> Any:
    """Draw the trace and the readings of a job as a `plotly.graph_objects.Figure`."""
    go = import_plotly()
    figure = make_panels(3, 1, _PANELS, shared_xaxes=True, vertical_spacing=0.09)
    trace = np.array(log.trace or [(0.0, np.nan, np.nan)])
    start_s = trace[0, 0]
    minutes = _to_minutes(trace[:, 0], start_s)
    readings = [x.reading for x in log.select_events(Measured)]
    periods = [(reading.at_s, 1 / reading.pace.beats) for reading in readings if reading.pace.beats > 0]
    at_s, period_s = np.array(periods or [(start_s, np.nan)]).T
    thin = {"width": 1.2, "color": COLORS["metered"]}
    clock = go.Scatter(x=minutes, y=round_column(trace[:, 2]), name="SM clock", line=thin)
    power = go.Scatter(x=minutes, y=round_column(trace[:, 1]), name="power", line=thin, showlegend=False)
    period = go.Scatter(
        x=_to_minutes(at_s, start_s), y=round_column(period_s), name="iteration", mode="markers"
    )
    period.update(marker={"size": 6, "color": COLORS["other"]}, showlegend=False)
    figure.add_trace(clock, 1, 1)
    figure.add_trace(power, 2, 1)
    figure.add_trace(period, 3, 1)
    _add_limits(figure, log, start_s, trace[-1, 0])
    for shift in log.select_events(Shifted):
        figure.add_vline(
            _to_minutes([shift.at_s], start_s)[0], line={"dash": "dot", "color": COLORS["naive"]}
        )
    figure.update_yaxes(tickformat=",", row=1)
    figure.update_yaxes(rangemode="tozero", row=2)
    figure.update_yaxes(rangemode="tozero", row=3)
    figure.update_xaxes(title_text="minutes", row=3)
    figure.update_xaxes(range=(0, max((trace[-1, 0] - start_s) / 60, 1 / 60)))
    changes = " A dotted line is a change of the job." if log.select_events(Shifted) else ""
    title, subtitle = "Clock, power and iterations of the job", f"{log.name}.{changes}"
    return style_figure(figure, title, subtitle, log.simulated, 720).update_layout(legend_y=-0.1)


def _to_minutes(at_s: Any, start_s: float) -> list[float | None]:
    """Minutes since the start of the trace."""
    return round_column((np.asarray(at_s, float) - start_s) / 60)


def _add_limits(figure: Any, log: GovernorLog, start_s: float, end_s: float) -> None:
    """Add the SM limit in force, where there is one: a line from each setting to the next."""
    applied = log.select_events(Applied)
    if applied:
        ends = [*(x.at_s for x in applied[1:]), end_s]
        at_s = np.ravel([(x.at_s, end) for x, end in zip(applied, ends, strict=True)])
        mhz = np.repeat([x.settings.sm_mhz or np.nan for x in applied], 2)
        line = {"width": 2.5, "color": COLORS["fastest"]}
        x, y = _to_minutes(at_s, start_s), round_column(mhz)
        figure.add_trace(import_plotly().Scatter(x=x, y=y, name="limit set", mode="lines", line=line), 1, 1)
