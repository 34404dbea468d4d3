"""Plotly, imported on first use, and the look that all pictures share."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ekc.errors import InvalidInput
from ekc.tables import choose_prefix

SIMULATED = "simulated"
"""The word on every picture whose figures come from a model of a device."""
COLORS = {
    "best": "#d1495b",
    "fastest": "#e08e2b",
    "naive": "#7a7a7a",
    "metered": "#3a7fcb",
    "predicted": "#8fb4dc",
    "limit": "#5b8c5a",
    "other": "#6f5fa8",
}
"""Colors by role, readable on white and on dark gray."""
SYMBOLS = {"best": "star", "fastest": "diamond", "naive": "square"}
INK, GRID = "#3a3f47", "rgba(128,128,128,0.22)"
"""Colors of text and of grid lines. A page changes the text on a dark background."""
DARK_INK, DARK_PAPER = "#d5dae0", "#16191d"
"""Colors of text and of the page in a dark window."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
DIGITS = 5
"""Significant digits of a figure in a picture."""


def import_plotly() -> ModuleType:
    """Import `plotly.graph_objects`. Raises `InvalidInput` naming the extra where plotly is missing."""
    try:
        import plotly.graph_objects
    except ImportError as problem:
        raise InvalidInput("pictures of a run need plotly: pip install 'ekc[plot]'") from problem
    module: ModuleType = plotly.graph_objects
    return module


def make_panels(rows: int, columns: int, titles: Iterable[str], **options: Any) -> Any:
    """Make a figure of panels in a grid. `options`: those of `plotly.subplots.make_subplots`."""
    import_plotly()
    from plotly.subplots import make_subplots

    figure = make_subplots(rows, columns, subplot_titles=tuple(titles), **options)
    figure.update_annotations(font_size=13)
    return figure


def style_figure(figure: Any, title: str, subtitle: str, simulated: bool, height: int = 440) -> Any:
    """Give a figure its title, with "(simulated)" where it applies, and the look of all pictures."""
    marked = f"{title} ({SIMULATED})" if simulated else title
    figure.update_layout(
        title={
            "text": marked,
            "subtitle": {"text": subtitle, "font": {"size": 12.5}},
            "x": 0,
            "xref": "container",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 14, "l": 4},
            "font": {"size": 17},
        },
        height=height,
        margin={"l": 64, "r": 16, "t": 104, "b": 92},
        font={"family": FONT, "size": 12.5, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        legend={
            "orientation": "h",
            "x": 0,
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "itemsizing": "constant",
        },
        hoverlabel={"font": {"family": FONT}},
        template="none",
    )
    axis = {"gridcolor": GRID, "linecolor": GRID, "zeroline": False, "ticks": "outside", "tickcolor": GRID}
    figure.update_xaxes(**axis, title_standoff=8)
    figure.update_yaxes(**axis, title_standoff=8)
    return figure


def round_column(values: NDArray[Any]) -> list[float | None]:
    """Round to `DIGITS` significant digits; None for NaN. Short numbers keep a page small."""
    return [float(f"{v:.{DIGITS}g}") if np.isfinite(v) else None for v in np.asarray(values, float).tolist()]


def add_scatter(figure: Any, x: Any, y: Any, column: int, row: int = 1, **look: Any) -> None:
    """Add points or a line to a panel, its coordinates rounded. `look`: options of a trace of Plotly."""
    trace = import_plotly().Scatter(x=round_column(x), y=round_column(y), **look)
    figure.add_trace(trace, row=row, col=column)


CHARACTER_PX = 7.0
"""Width of a character of a label, about."""


def make_room_for_labels(figure: Any, labels: Iterable[str]) -> Any:
    """Widen the left margin for labels. Plotly would draw a figure several times to find the margin."""
    return figure.update_layout(margin_l=28 + CHARACTER_PX * max(map(len, labels), default=0))


MAX_LINEAR_RATIO = 4.0
"""Largest ratio of the ends of a linear axis; wider ranges have a log axis."""
LOG_AXIS = {"type": "log", "dtick": "D2", "tickformat": ","}
"""Options of a log axis: whole numbers at 1, 2 and 5 of each decade."""


def choose_axis(values: NDArray[Any]) -> dict[str, Any]:
    """Choose the options of an axis that shows positive values: log if they differ much, otherwise linear."""
    finite = values[np.isfinite(values)]
    is_wide = len(finite) > 0 and finite.max() > MAX_LINEAR_RATIO * finite.min() > 0
    return dict(LOG_AXIS) if is_wide else {}


def choose_scale(values: NDArray[Any], unit: str) -> tuple[float, str]:
    """Choose the scale and unit that show the median with digits before the point."""
    finite = np.asarray(values, float)[np.isfinite(values)]
    middle = float(np.median(finite)) if len(finite) else 1.0
    scale, prefix = choose_prefix(middle)
    return scale, prefix.replace("u", "\N{MICRO SIGN}") + unit


def escape_text(text: str) -> str:
    """Escape a name for a text of Plotly, which reads a part of HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 1rem auto; padding: 0 1rem; max-width: 1180px; background: #ffffff; }}
@media (prefers-color-scheme: dark) {{ body {{ background: {paper}; }} }}
@media print {{ body {{ background: #ffffff; }} }}
</style>
</head>
<body>
{figure}
</body>
</html>
"""
_SWITCH_COLORS = """
const figure = document.getElementById("{plot_id}");
const dark = matchMedia("(prefers-color-scheme: dark)");
const paint = (isDark) => Plotly.relayout(figure, {
  "font.color": isDark ? "DARK_INK" : "INK",
  "hoverlabel.bgcolor": isDark ? "DARK_PAPER" : "#ffffff",
  "hoverlabel.font.color": isDark ? "DARK_INK" : "INK",
});
paint(dark.matches);
dark.addEventListener("change", () => paint(dark.matches));
addEventListener("beforeprint", () => paint(false));
addEventListener("afterprint", () => paint(dark.matches));
"""


def format_figure_page(figure: Any, title: str) -> str:
    """An HTML page of a `plotly.graph_objects.Figure` that `theme.style_figure` has styled, for light and
    dark windows. `title`: plain text for the window."""
    script = _SWITCH_COLORS.replace("DARK_INK", DARK_INK).replace("DARK_PAPER", DARK_PAPER)
    text = figure.to_html(
        include_plotlyjs=True,
        full_html=False,
        div_id="figure",
        config={"responsive": True, "displaylogo": False, "toImageButtonOptions": {"format": "svg"}},
        post_script=script.replace("INK", INK),
    )
    return _PAGE.format(title=escape(title), paper=DARK_PAPER, figure=text)
