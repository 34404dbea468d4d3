"""docs/metering.md: its block prints what the page says, and the files it names are there."""

import re

from tests.docs.blocks import ROOT, blocks, printed

PAGE = (ROOT / "docs" / "metering.md").read_text()


def test_the_block_prints_what_the_page_shows() -> None:
    code, text = blocks(PAGE)
    assert printed(code, {}) == text.text


def test_every_path_that_it_names_is_there() -> None:
    named = set(re.findall(r"`?((?:devices|tests)/[\w/]+(?:\.py)?)`?", PAGE))
    assert len(named) >= 5
    for path in named:
        assert (ROOT / path).exists() or (ROOT / "ekc" / path).exists(), path
