"""A Sphinx extension: docstrings of the package, which are plain text, as reStructuredText.

Single backticks are links where the name in them is documented, and code elsewhere; any other text in single
backticks is code as it is.
"""

from __future__ import annotations

import re
from typing import Any

from docutils.nodes import document
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_NAME = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_FACTORY = "<factory>"
"""How a dataclass writes a default that it computes. Sphinx cannot parse a signature that has it."""


def mark_code(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Double the backticks around text that is no name, in place."""
    lines[:] = [_CODE.sub(lambda m: m[0] if _NAME.fullmatch(m[1]) else f"`{m[0]}`", line) for line in lines]


def simplify_signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str, str | None] | None:
    """The signature with computed defaults as three dots."""
    return (signature.replace(_FACTORY, "..."), returns) if signature and _FACTORY in signature else None


def require_exact_names(app: Sphinx, tree: document) -> None:
    """Let a type in a signature refer to the full name alone: `bytes` is not `SiteCount.bytes`. Sphinx sets
    the flag to False for that, and then asks only whether it is there."""
    for node in tree.findall(pending_xref):
        if node.get("refspecific") is False:
            del node["refspecific"]


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the functions."""
    app.connect("autodoc-process-docstring", mark_code)
    app.connect("autodoc-process-signature", simplify_signature)
    app.connect("doctree-read", require_exact_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
