"""Plotly figures on pages of the site: written by the kernel of a page, drawn by a script in the browser."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from docs._site.plotly_figures import MARK, SCRIPTS, add_scripts, make_ipython_folder
from tests.browser import PageOpener

plotly = pytest.importorskip("plotly")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[2]
CELL = """
import sys
assert "plotly" not in sys.modules
import plotly.graph_objects as go
go.Figure(go.Scatter(x=[1, 2], y=[3, 4], name="</script>"), layout={"title": "a title"})
"""


@pytest.fixture(scope="module")
def html() -> str:
    """The output of a cell that ends with a figure, in a kernel as the site starts it."""
    from jupyter_client.manager import start_new_kernel

    paths = os.pathsep.join([str(ROOT), str(ROOT / "docs")])
    environment = os.environ | {"PYTHONPATH": paths, "IPYTHONDIR": make_ipython_folder()}
    manager, client = start_new_kernel(env=environment)
    outputs: list[dict[str, Any]] = []

    def keep(message: dict[str, Any]) -> None:
        if message["header"]["msg_type"] in ("display_data", "execute_result", "stream", "error"):
            outputs.append(message["content"])

    client.execute_interactive(CELL, timeout=60, output_hook=keep)
    client.stop_channels()
    manager.shutdown_kernel(now=True)
    (output,) = outputs
    assert set(output["data"]) == {"text/html", "text/plain"}, output
    found: str = output["data"]["text/html"]
    return found


def test_kernel_writes_a_figure_as_json(html: str) -> None:
    match = re.fullmatch(rf'<div class="{MARK}"><script type="application/json">(.*)</script></div>', html)
    assert match
    figure = json.loads(match[1])
    assert figure["layout"]["title"]["text"] == "a title"
    assert figure["data"][0]["name"] == "</script>"


def test_script_draws_the_figure_in_the_colors_of_the_page(
    html: str, tmp_path: Path, open_page: PageOpener
) -> None:
    folders = (Path(plotly.__file__).parent / "package_data", ROOT / "docs" / "_static")
    scripts = [f'<script src="{(f / s).as_uri()}"></script>' for f, s in zip(folders, SCRIPTS, strict=True)]
    style = "body { color: rgb(1, 2, 3) } @media (prefers-color-scheme: dark) { body { color: rgb(7,8,9) } }"
    file = tmp_path / "page.html"
    file.write_text(f"<!doctype html><style>{style}</style><body>{html}{''.join(scripts)}</body>")
    page = open_page()
    page.goto(file.as_uri())
    page.wait_for_selector(f".{MARK} .gtitle")
    assert page.text_content(f".{MARK} .gtitle") == "a title"
    has_color = f"(color) => getComputedStyle(document.querySelector('.{MARK} .gtitle')).fill === color"
    page.wait_for_function(has_color, arg="rgb(1, 2, 3)", timeout=5000)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(has_color, arg="rgb(7, 8, 9)", timeout=5000)


def test_only_pages_with_a_figure_load_the_scripts(html: str) -> None:
    loaded: list[str] = []

    class App:
        add_js_file = staticmethod(loaded.append)

    add_scripts(App, "page", "page.html", {"body": "<p>plotly-figure</p>"}, None)
    add_scripts(App, "genindex", "genindex.html", {}, None)
    assert not loaded
    add_scripts(App, "page", "page.html", {"body": html}, None)
    assert loaded == list(SCRIPTS)
