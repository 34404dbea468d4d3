"""The register estimate against ptxas, in a tiny form."""

from __future__ import annotations

import pytest

from tests.benchmarks.helpers import Run


@pytest.mark.slow
def test_registers_are_compared_with_ptxas(run: Run) -> None:
    options = ("--only", "conv 1x64", "--draws", "4")
    text, figures = run("cost_model.registers", *options, "--a-round", "0")
    assert "0 registers a round" in text
    (line,) = figures["lines"]
    assert line["compiled"] == 4
    assert 0 <= line["spill"] <= 1
    assert line["median"] > 0
