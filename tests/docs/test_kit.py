"""docs/recordings.md and docs/kit.md: every command works as written, one after the other."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks


@pytest.mark.parametrize("name", ["recordings", "kit"])
def test_commands(name: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / f"{name}.md").read_text()
    lines = [x for block in blocks(page) if block.language == "sh" for x in block.text.splitlines()]
    assert len(lines) >= 3
    for line in lines:
        program, *words = shlex.split(line)
        command = {"python": [sys.executable], "ekc": [sys.executable, "-m", "ekc"]}[program]
        words = [str(ROOT / word) if word.startswith("benchmarks/") else word for word in words]
        done = subprocess.run(
            [*command, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=900,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, (line, done.stderr)
        assert "Traceback" not in done.stderr
        if "t4" not in words and "search" not in words:
            assert "simulated" in done.stdout, line


def test_every_part_has_its_line() -> None:
    from benchmarks.gpu.__main__ import PARTS
    from benchmarks.gpu.folder import FILES

    page = (ROOT / "docs" / "kit.md").read_text()
    for part, module in PARTS.items():
        assert f"| `{part}` | {module.MINUTES:g} |" in page
    assert all(f"| `{file}` |" in page for file in FILES)
