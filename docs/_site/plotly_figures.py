"""Plotly figures on pages: the kernel of a page writes them as JSON, and a script of the site draws them.

A page with a figure loads Plotly's script from the site; other pages do not. Figures follow the light and the
dark theme.
"""

from __future__ import annotations

import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MARK = "plotly-figure"
"""Class of the element that holds a figure."""
SCRIPTS = ("plotly.min.js", "plotly_figures.js")
STARTUP = """
from _site.plotly_figures import show_figure
get_ipython().display_formatter.ipython_display_formatter.for_type_by_name(
    "plotly.basedatatypes", "BaseFigure", show_figure
)
del show_figure
"""
"""Run by the kernel of each page before its first cell. It does not import plotly."""


def make_ipython_folder() -> str:
    """Make a folder of settings for the kernels of all pages."""
    folder = Path(tempfile.mkdtemp(prefix="ekc-site-"))
    startup = folder / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "plotly_figures.py").write_text(STARTUP)
    return str(folder)


def show_figure(figure: Any) -> None:
    """Write a figure into the output of a cell."""
    from IPython.display import HTML, display

    text = figure.to_json().replace("</", "<\\/")
    display(HTML(f'<div class="{MARK}"><script type="application/json">{text}</script></div>'))


def copy_plotly(app: Any) -> None:
    """Copy Plotly's script into the site."""
    spec = find_spec("plotly")
    if spec is not None and app.builder.format == "html":
        folder = Path(app.outdir) / "_static"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(spec.origin).parent / "package_data" / SCRIPTS[0], folder)


def add_scripts(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Load the scripts on pages that have a figure."""
    if f'class="{MARK}"' in context.get("body", ""):
        for script in SCRIPTS:
            app.add_js_file(script)


def setup(app: Any) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("builder-inited", copy_plotly)
    app.connect("html-page-context", add_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
