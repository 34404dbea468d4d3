"""Files that the pages name are there, by the path that the page gives."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT

FOLDERS = ("ekc", "benchmarks", "tests", "examples")
_NAMED = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|j2|toml))`")


def test_every_file_that_a_page_names_is_there() -> None:
    files = [f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    files += [f"/{path.name}" for path in ROOT.glob("*.*")]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = [(page.name, name) for page in pages for name in _NAMED.findall(page.read_text())]
    assert len(named) > 100
    assert not [(page, name) for page, name in named if not any(f.endswith(f"/{name}") for f in files)]
