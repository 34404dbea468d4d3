#!/usr/bin/env python3
"""Find words that readers of ekc need not learn, in comments, docstrings, messages and pages.

    python .ci/check_words.py [FILE ...] [--update]

Python files: comments and string literals are searched, names are not. Other files: every line. `PLAIN` has
words that are fine in their plain sense (a distance, a figure on a page, a plot): lines that use them so are
listed, after review, in `words_allowed.txt`; `--update` drops listed lines that no longer exist, and adds
none. A docstring or comment must not begin with "Of" or "What". Exit status 1 where anything is found.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = Path(__file__).with_name("words_allowed.txt")
FOLDERS, SUFFIXES = (
    ("ekc", "tests", "docs"),
    {".py", ".md", ".j2", ".cpp", ".h", ".cu", ".toml", ".txt", ".json", ".css", ".js"},
)
BANNED = re.compile(r"\b(told|anew|nobody|flies|by\s+itself|on\s+the\s+way)\b|(<{7}|>{7}) ", re.IGNORECASE)
"""Words, and the marks of an unresolved merge."""
PLAIN = re.compile(r"\b(lies|stands|apart|is\s+drawn)\b", re.IGNORECASE)
OPENING = re.compile(r"(Of|What)\b")
ANY = re.compile(rf"{BANNED.pattern}|{PLAIN.pattern}|[\"'#!]\s*{OPENING.pattern}", re.IGNORECASE)
"""Text without such a match has no finding, and needs no look at its tokens."""


def find_files() -> list[Path]:
    """Every text file of the folders that are searched. Pages in docs/project are copies."""
    found = (p for f in FOLDERS for p in (ROOT / f).rglob("*") if p.suffix in SUFFIXES and p.is_file())
    return sorted(p for p in found if ROOT / "docs/project" not in p.parents)


def read_python(text: str) -> Iterator[tuple[int, str, bool]]:
    """(line, text, whether it opens a docstring or comment) of comments and string literals."""
    openings = find_docstrings(text)
    last_comment = -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            own_line = token.line.strip().startswith("#")
            yield line, token.string.lstrip("#! "), not (own_line and last_comment == line - 1)
            last_comment = line if own_line else -1
        elif token.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            body = re.sub(r"^[a-zA-Z]*(\"\"\"|'''|\"|')", "", token.string)
            yield line, body, line in openings


def find_docstrings(text: str) -> set[int]:
    """First lines of docstrings, those under fields and constants included."""
    return {
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def find_words(path: Path) -> Iterator[tuple[str, str, str]]:
    """(kind, place, source line) of each finding in a file; kind is "banned", "plain" or "opening"."""
    text = path.read_text(encoding="utf-8")
    if not ANY.search(text):
        return
    lines = text.splitlines()
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    pieces = list(read_python(text)) if path.suffix == ".py" else [(1, text, False)]
    for start, piece, opens in pieces:
        if opens and OPENING.match(piece.lstrip()):
            yield "opening", f"{name}:{start}", lines[start - 1].strip()
        for kind, pattern in (("banned", BANNED), ("plain", PLAIN)):
            for found in pattern.finditer(piece):
                line = start + piece.count("\n", 0, found.start())
                yield kind, f"{name}:{line}", lines[line - 1].strip()


def main() -> int:
    """Print what is found outside the reviewed list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--update", action="store_true", help="drop listed lines that no longer exist")
    asked = parser.parse_args()
    allowed = set(ALLOWED.read_text(encoding="utf-8").splitlines()) if ALLOWED.exists() else set()
    used, count = set(), 0
    for path in [p.resolve() for p in asked.files] or find_files():
        for kind, place, line in find_words(path):
            entry = f"{place.rsplit(':', 1)[0]}: {line}"
            if kind == "plain" and entry in allowed:
                used.add(entry)
                continue
            count += 1
            print(f"{place}: {kind}: {line}")
    stale = sorted(allowed - used) if not asked.files else []
    if asked.update:
        ALLOWED.write_text("".join(f"{entry}\n" for entry in sorted(used)), encoding="utf-8")
    elif stale:
        print(*(f"words_allowed.txt: no such line: {entry}" for entry in stale), sep="\n")
    print(f"{count} findings, {len(stale)} stale entries of {ALLOWED.name}")
    return int(bool(count or (stale and not asked.update)))


if __name__ == "__main__":
    sys.exit(main())
