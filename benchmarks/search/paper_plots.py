"""Two plots of `paper.py`, after figures 4 and 5 of arXiv 2411.18873. They need plotly.

Each is a page that opens without a network; its camera button saves the figure as SVG.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.paper_runs import DEFAULT, EVERYTHING
from ekc.report.theme import COLORS, format_figure_page, import_plotly, round_column, style_figure

Line = dict[str, Any]
NOTE = "virtual meter"


def draw(lines: Sequence[Line], folder: Path) -> list[Path]:
    """Write what the runs allow; the paths written. Raises `InvalidInput` without plotly."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, plot in (("predicted-energy", plot_predicted), ("energy-over-metering", plot_over_time)):
        figure = plot(lines)
        if figure is not None:
            written.append(folder / f"{name}.html")
            written[-1].write_text(format_figure_page(figure, name), encoding="utf-8")
    return written


def plot_predicted(lines: Sequence[Line]) -> Any:
    """Energies predicted before they were metered, against the meter; default runs, each relative to the
    least energy that its run found. None without such runs."""
    mine = [x for x in lines if x["variant"] == DEFAULT and x["judged"]]
    if not mine:
        return None
    go = import_plotly()
    figure = go.Figure()
    ends = []
    for device in dict.fromkeys(x["device"] for x in mine):
        pairs = np.concatenate([np.array(x["judged"]) / x["energy_j"] for x in mine if x["device"] == device])
        x, y = round_column(pairs[:, 2]), round_column(pairs[:, 0])
        figure.add_scatter(x=x, y=y, mode="markers", opacity=0.7, name=f"{device} (simulated)")
        ends += [pairs[:, 2].min(), pairs[:, 2].max()]
    line = [min(ends), max(ends)]
    equal = {"dash": "dash", "color": COLORS["naive"]}
    figure.add_scatter(x=line, y=line, mode="lines", line=equal, name="predicted = metered")
    figure.update_layout(xaxis_title="metered / least of the run", yaxis_title="predicted / least of the run")
    return style_figure(figure, "Energy predicted before it was metered", NOTE, simulated=True)


def plot_over_time(lines: Sequence[Line]) -> Any:
    """Least energy metered so far over the seconds that a meter would have taken, median over all runs of a
    variant, relative to what metering everything found in the end. None without runs of that variant."""
    last = {(x["operator"], x["device"], x["seed"]): x for x in lines if x["variant"] == EVERYTHING}
    if not last:
        return None
    longest = max(x["metering_s"] for x in lines)
    seconds = np.geomspace(10, longest, 200)
    figure = import_plotly().Figure()
    for variant in dict.fromkeys(x["variant"] for x in lines):
        mine = [x for x in lines if x["variant"] == variant and x["curve"]]
        curves = [
            evaluate_curve(x["curve"], seconds) / last[x["operator"], x["device"], x["seed"]]["energy_j"]
            for x in mine
        ]
        median = round_column(np.median(curves, axis=0))
        figure.add_scatter(x=round_column(seconds), y=median, mode="lines", name=variant)
    figure.update_layout(
        xaxis={"title": "metering [virtual s]", "type": "log"},
        yaxis={"title": "least energy / metering everything", "range": (0.95, 1.5)},
    )
    return style_figure(figure, "Energy of the best over metering", NOTE, simulated=True).update_layout(
        legend_y=-0.25
    )


def evaluate_curve(curve: Sequence[tuple[float, float]], seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """The curve's value at each time; infinity before its first point."""
    when, value = np.array(curve).T
    at = np.searchsorted(when, seconds, side="right")
    return np.asarray(np.concatenate([[np.inf], value])[at])
