"""The example of docs/governor.md that finds a period prints what the page says."""

from __future__ import annotations

from tests.docs.blocks import ROOT, blocks, printed


def test_the_example_prints_what_the_page_says() -> None:
    found = blocks((ROOT / "docs" / "governor.md").read_text())
    (example,) = (block for block in found if block.language == "py")
    said = found[found.index(example) + 1]
    assert said.language == "text"
    assert printed(example, {}) == said.text
