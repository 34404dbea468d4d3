"""Show shell cells as the page has them: without the lines that make the kernel run them as shell."""

from __future__ import annotations

from typing import Any

from docutils.nodes import Text, document, literal_block

from .pages import KEEP_STATUS


def strip_prefix(app: Any, tree: document) -> None:
    """Take the first lines off every shell cell of a page, and highlight it as shell."""
    for block in tree.findall(literal_block):
        if block.rawsource.startswith(KEEP_STATUS) or block.astext().startswith(KEEP_STATUS):
            source = block.astext().removeprefix(KEEP_STATUS)
            block.rawsource = source
            block.children = [Text(source)]
            block["language"] = "bash"


def setup(app: Any) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("doctree-read", strip_prefix)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
