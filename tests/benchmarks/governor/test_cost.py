"""The cost of a governor and its guard, over a short job."""

from __future__ import annotations

import pytest

from benchmarks.governor.cost import measure_cost
from tests.benchmarks.helpers import Run


@pytest.mark.slow
def test_cost_verdict_follows_from_the_shares(run: Run) -> None:
    text, figures = run("governor.cost", "--seconds", "20")
    assert "scripted NVML, a job of 20 s" in text
    assert len(figures["lines"]) == 2
    for row in figures["lines"]:
        assert row["governor"] > 0
        assert row["pass"] == (row["governor"] + row["guard"] <= row["bar"]["share"] == 0.01)


def test_cost_of_a_short_job() -> None:
    row = measure_cost(instant=True, seconds=8.0)
    assert row["governor"] > 0
    assert row["pass"] == (row["governor"] + row["guard"] <= 0.01)
