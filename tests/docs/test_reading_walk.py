"""The walk through the code (docs/explanation/read-the-code.md): its files exist, and it fits into a day."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT

PAGE = ROOT / "docs" / "explanation" / "read-the-code.md"
MAX_FILES, MAX_LINES = 30, 7000


def test_walk_names_files_and_is_short() -> None:
    files = re.findall(r"^\| [^|]*\| `(ekc/[\w./]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert 20 <= len(files) == len(set(files)) <= MAX_FILES
    lines = {name: len((ROOT / name).read_text().splitlines()) for name in files}
    assert sum(lines.values()) <= MAX_LINES, lines


def test_walk_begins_at_the_operator_and_ends_at_the_choice() -> None:
    files = re.findall(r"`(ekc/[\w./]+)`", PAGE.read_text())
    order = ["ir/operators", "ir/program", "ir/schedule", "ir/lowering", "codegen", "devices", "search"]
    first = [next(n for n, file in enumerate(files) if file.startswith(f"ekc/{part}")) for part in order]
    assert first == sorted(first)
