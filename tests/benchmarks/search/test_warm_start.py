"""The gain of warm starts, in a tiny form."""

from __future__ import annotations

import pytest

from tests.benchmarks.helpers import Run


@pytest.mark.slow
def test_warm_start_learns_from_three_record_files(run: Run) -> None:
    options = ("--only", "MV", "--seeds", "1", "--trials", "10", "--taught", "10")
    text, figures = run("search.warm_start", *options)
    assert "a100 (simulated)" in text
    assert [line["taught_by"] for line in figures["lines"]] == ["other shapes", "rtx4090 (simulated)", "both"]
    for line in figures["lines"]:
        assert line["ratio"] > 0
        assert line["note"].startswith(f"{line['kernels']} timed")
