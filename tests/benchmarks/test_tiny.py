"""Each benchmark in a tiny form: it runs, prints its table and writes its figures with bar and verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def run(script: str, tmp_path: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """What a benchmark printed, and its JSON."""
    file = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), "--json", str(file), *options],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"EKC_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(FOLDER.parent)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text())


def test_search_rate(tmp_path: Path) -> None:
    text, figures = run("search_rate.py", tmp_path, "--seconds", "0.1", "--population", "512", "--seed", "1")
    assert "candidates/s" in text
    assert "a100 (simulated)" in text
    assert figures["bar"]["candidates_per_s"] == 20_000
    assert figures["structures_scored"] >= figures["bar"]["structures_scored"] == 8
    assert sum(figures["scored_by_structure"].values()) == figures["scored"]
    assert figures["candidates_per_s"] == pytest.approx(figures["scored"] / figures["seconds"])
    assert figures["pass"] == (figures["candidates_per_s"] >= 20_000)
    assert sum(figures["share_of_time"].values()) == pytest.approx(1.0)


def test_tune_table(tmp_path: Path) -> None:
    text, figures = run("tune_table.py", tmp_path, "--only", "MM 127x255x63", "--trials", "8")
    (line,) = figures["lines"]
    assert "a100 (simulated)" in text
    assert "was not executed" in text
    assert line["operator"] == "MM 127x255x63"
    assert line["kept"] >= 1
    assert line["problems"] == []
    assert line["trials"] == 8
    assert line["best_latency_s"] <= 1.05 * line["fastest_latency_s"]
    assert line["bar"]["problems"] == 0
    assert figures["pass"] == line["pass"]


def test_tune_table_against_the_schedule_by_hand(tmp_path: Path) -> None:
    text, figures = run(
        "tune_table.py", tmp_path, "--only", "MM 4096^3 by hand", "--trials", "4", "--side", "256"
    )
    (line,) = figures["lines"]
    assert "by hand" in text
    assert line["operator"] == "MM 256^3"
    assert line["hand_latency_s"] > 0
    assert line["bar"]["latency_s"] == line["hand_latency_s"]
    assert line["pass"] is False or line["fastest_latency_s"] <= line["hand_latency_s"]


def test_a_wrong_kept_kernel_would_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import ekc
    from ekc.search.naive import naive
    from ekc.search.result import Trial

    monkeypatch.syspath_prepend(str(FOLDER))
    import tune_table

    op = ekc.matmul(16, 16, 16)
    trial = Trial(naive(op), "naive", "ok")
    assert tune_table.verify(op, [trial]) == []
    monkeypatch.setattr(tune_table, "ARCHITECTURES", ("sm_80", "sm_12"))
    (problem,) = tune_table.verify(op, [trial])
    assert "sm_12" in problem
