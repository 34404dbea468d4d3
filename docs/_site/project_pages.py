"""Pages outside docs/ that are pages of the site too: README, CONTRIBUTING and others.

`write_copies` writes them to docs/project/. Links between these and the pages of docs/ keep working; a link
to another file of the repository, such as LICENSE, becomes its text. Only the blocks of the README and of the
lessons of the course are executed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
SOURCES = {
    "readme": "README.md",
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "benchmarks": "benchmarks/README.md",
    "examples": "examples/README.md",
    **{
        f"lessons/{path.stem}": str(path.relative_to(ROOT))
        for path in sorted((ROOT / "ekc/course/lessons").glob("*.md"))
    },
}
"""Name of the copy -> page."""
_NAMES = {source: name for name, source in SOURCES.items()}
OUTSIDE_LINK = re.compile(r"\[([^\]]*)\]\((?:\.\./)+([\w./-]+)(#[\w-]+)?\)")
"""A link from a page to a folder above its own: text, path without the dots, anchor."""
_RELATIVE_LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#|/)([\w./-]+)(#[\w-]+)?\)")


def rewrite_link(match: re.Match[str]) -> str:
    """Rewrite a link of a page of docs/ that leads out of docs/."""
    text, path, anchor = match.groups()
    return (
        match[0] if (DOCS / path).exists() or not (ROOT / path).exists() else _make_link(text, path, anchor)
    )


def _make_link(text: str, path: str, anchor: str | None) -> str:
    """A link on the site to a file of the repository; the text alone if the file is no page."""
    if path.startswith("docs/"):
        return f"[{text}](/{path.removeprefix('docs/')}{anchor or ''})"
    return f"[{text}](/project/{_NAMES[path]}.md{anchor or ''})" if path in _NAMES else text


def write_copies() -> None:
    """Write the copies of all pages outside docs/."""
    (DOCS / "project/lessons").mkdir(parents=True, exist_ok=True)
    for name, source in SOURCES.items():
        folder = os.path.dirname(source)
        text = _RELATIVE_LINK.sub(
            lambda m, folder=folder: _make_link(m[1], os.path.normpath(os.path.join(folder, m[2])), m[3]),
            (ROOT / source).read_text(),
        )
        if name != "readme" and not name.startswith("lessons/"):
            text = re.sub(r"^```(sh|python)\b.*", r"```{code-block} \1", text, flags=re.MULTILINE)
        (DOCS / "project" / f"{name}.md").write_text(text)
