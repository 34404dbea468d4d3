"""The two benchmarks of the governor's manners, in a tiny form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "benchmarks"


def _run(script: str, tmp_path: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """What a benchmark printed, and its JSON; its status says whether the bars were met."""
    file = tmp_path / "figures.json"
    words = [sys.executable, str(FOLDER / script), "--json", str(file), *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    figures: dict[str, Any] = json.loads(file.read_text())
    assert done.returncode == (0 if figures["pass"] else 1), done.stderr
    return done.stdout, figures


def test_kills(tmp_path: Path) -> None:
    text, figures = _run("governor_kills.py", tmp_path, "--kills", "1", "--seed", "3")
    assert "scripted NVML, 1 kills each, seed 3" in text
    assert [row["killed"] for row in figures["rows"]] == ["job", "governor", "guard", "all"]
    for row in figures["rows"]:
        (case,) = row["cases"]
        assert case["restored"] == (row["killed"] == "all")
        assert row["bar"]["back_s"] == (None if row["killed"] == "all" else 5.0)
        assert row["pass"] == (case["back_s"] <= (row["bar"]["back_s"] or 1e9) and case["job_unharmed"])
        assert case["job_unharmed"]


def test_cost(tmp_path: Path) -> None:
    text, figures = _run("governor_cost.py", tmp_path, "--seconds", "20")
    assert "scripted NVML, a job of 20 s" in text
    assert len(figures["rows"]) == 2
    for row in figures["rows"]:
        assert row["governor"] > 0
        assert row["pass"] == (row["governor"] + row["guard"] <= row["bar"]["share"] == 0.01)
