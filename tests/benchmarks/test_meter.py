"""The benchmark of the meter, in a tiny form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "meter.py"


def test_meter(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    words = [
        sys.executable,
        str(SCRIPT),
        "--json",
        str(file),
        "--draws",
        "3",
        "--seconds",
        "1",
        "--seed",
        "2",
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    figures = json.loads(file.read_text())
    assert done.returncode == (0 if figures["pass"] else 1), done.stderr
    assert "scripted NVML (no GPU), windows of 1 s, 3 draws a row, seed 2" in done.stdout
    assert [row["pass"] for row in figures["rows"] if row["kind"].startswith("a quarter")] == [None, None]
    for row in figures["rows"]:
        assert 0 <= row["held"] <= 1
        assert 0 < row["rms_error"] <= row["largest_error"] < 0.2
