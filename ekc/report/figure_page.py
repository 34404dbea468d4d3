"""A page with one figure in it, and with Plotly's script, so that it opens without a network."""

from __future__ import annotations

from html import escape
from typing import Any

from ekc.report.theme import DARK_INK, DARK_PAPER, INK

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
