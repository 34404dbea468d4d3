"""Errors of the boosted trees, from two seeds of each kind."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.governor.helpers import run_benchmark


def test_model_verdict_follows_from_the_errors(tmp_path: Path) -> None:
    text, figures = run_benchmark("model", tmp_path, "--card", "h200", "--seeds", "2")
    assert "simulated" in text
    sources = [row["from"] for row in figures["rows"]]
    assert sources == ["counters and signals", "signals alone", "mean of other jobs"]
    assert figures["pass"] == all(row.get("pass", True) for row in figures["rows"])
