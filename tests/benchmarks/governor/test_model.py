"""Errors of the boosted trees, from two seeds of each kind."""

from __future__ import annotations

from tests.benchmarks.helpers import Run


def test_model_verdict_follows_from_the_errors(run: Run) -> None:
    text, figures = run("governor.model", "--card", "h200", "--seeds", "2")
    assert "simulated" in text
    sources = [row["from"] for row in figures["lines"]]
    assert sources == ["counters and signals", "signals alone", "mean of other jobs"]
    assert figures["pass"] == all(row.get("pass", True) for row in figures["lines"])
