"""Configuration of the documentation site: `sphinx-build -W docs build/site` builds it and executes its
pages."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from _site.plotly_figures import make_ipython_folder
from _site.project_pages import write_copies

from ekc.version import __version__

FOLDER = Path(__file__).parent
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ |= {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "PYTHONPATH": f"{FOLDER.parent}{os.pathsep}{FOLDER}"}
os.environ["IPYTHONDIR"] = make_ipython_folder()

write_copies()

project = "ekc"
author = "The ekc authors"
copyright = "The ekc authors, Apache-2.0"
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_click",
    "_site.docstrings",
    "_site.cli_options",
    "_site.plotly_figures",
    "_site.shell",
]
exclude_patterns = ["_site", "decisions/2026-11-26-tests"]
nb_custom_formats = {".md": "_site.pages.read_page"}
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_show_tb = True
nb_execution_in_temp = True
nb_merge_streams = True
# Progress of runs in Python cells.
nb_output_stderr = "remove"
myst_enable_extensions = ["colon_fence", "deflist"]
# Else a line that begins with a percent sign is a comment: "6 % of" may be wrapped before it.
myst_disable_syntax = ["myst_line_comment"]
myst_heading_anchors = 4

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"ekc {release}"
templates_path: list[str] = []

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "fully-qualified"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 80
# Names in single backticks in docstrings are links where they are documented, and code elsewhere.
default_role = "py:obj"
# Quotes in docstrings are mostly those of values.
smartquotes = False
# Links lead to the sites; the inventories are local, because the build has no network.
INVENTORIES = Path(__file__).parent / "_site/inventories"
intersphinx_mapping = {
    name: (url, str(INVENTORIES / f"{name}.inv"))
    for name, url in (("python", "https://docs.python.org/3/"), ("numpy", "https://numpy.org/doc/stable/"))
}
