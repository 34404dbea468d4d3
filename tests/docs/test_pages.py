"""Pages of Python blocks: every block runs, and each prints what the page says it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ekc.codegen import nvrtc
from tests.docs.blocks import ROOT, blocks, printed, with_outputs

PAGES = ("tutorial", "schedule-space", "tensor-cores")


def _run(page: str) -> list[str]:
    """The output of the blocks that have a text block under them."""
    namespace: dict[str, Any] = {}
    outputs = []
    found = blocks(page)
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block.language == "python":
            text = printed(block, namespace)
            if after is not None and after.language == "text":
                outputs.append(text)
            else:
                assert text == "", f"the block at line {block.line} prints, and no text block shows it"
    return outputs


@pytest.mark.parametrize("name", PAGES)
def test_a_page_shows_what_its_blocks_print(
    name: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = ROOT / "docs" / f"{name}.md"
    page = file.read_text()
    new = with_outputs(page, _run(page))
    if request.config.getoption("--update-golden"):
        file.write_text(new)
        return
    if f"NVRTC {nvrtc.version()}" not in page:
        pytest.skip(f"the page's figures are of another NVRTC than {nvrtc.version()}; its blocks ran")
    assert new == page, f"docs/{name}.md shows other output; --update-golden accepts the new"
