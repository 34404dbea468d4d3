"""The benchmark of the meter, in a tiny form."""

from __future__ import annotations

import pytest

from tests.benchmarks.helpers import Run


@pytest.mark.slow
def test_meter_errors_are_small(run: Run) -> None:
    options = ("--draws", "3", "--seconds", "1", "--seed", "2")
    text, figures = run("metering.meter", *options)
    assert "scripted NVML (no GPU), windows of 1 s, 3 draws a row, seed 2" in text
    assert [row["pass"] for row in figures["rows"] if row["kind"].startswith("a quarter")] == [None, None]
    for row in figures["rows"]:
        assert 0 <= row["held"] <= 1
        assert 0 < row["rms_error"] <= row["largest_error"] < 0.2
