"""The rate of the search, in a tiny form."""

from __future__ import annotations

import pytest

from tests.benchmarks.helpers import Run


@pytest.mark.slow
def test_rate_is_distinct_candidates_over_seconds(run: Run) -> None:
    text, figures = run("search.rate", "--seconds", "0.1", "--population", "512", "--seed", "1")
    assert "candidates/s" in text
    assert "a100 (simulated)" in text
    (row,) = figures["rows"]
    assert row["bar"]["candidates_per_s"] == 100_000
    assert row["structures_scored"] >= row["bar"]["structures_scored"] == 8
    assert sum(row["scored_by_structure"].values()) == row["scored"]
    assert row["candidates_per_s"] == pytest.approx(row["scored"] / row["seconds"])
    assert row["pass"] == (row["candidates_per_s"] >= 100_000)
    assert 0 < row["cascade"]["asked"] <= 1
    assert row["cascade"]["best_kept"] > 0.9
    assert row["cascade"]["rank_correlation"] > 0.9
    assert sum(row["share_of_time"].values()) == pytest.approx(1.0)
