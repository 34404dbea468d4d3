"""The gain of split sums, in a tiny form."""

from __future__ import annotations

import pytest

from tests.benchmarks.helpers import Run


@pytest.mark.slow
def test_search_without_split_sums_has_fewer_structures(run: Run) -> None:
    options = ("--only", "MV", "--trials", "4", "--seed", "1")
    text, figures = run("search.split_k", *options)
    assert "a100 (simulated)" in text
    (line,) = figures["lines"]
    whole, both = line["structures"]
    assert 0 < whole < both
    assert line["ratio"] == pytest.approx(line["in_parts_s"] / line["whole_s"])
    assert figures["pass"] == line["pass"] == (line["ratio"] <= 1)
