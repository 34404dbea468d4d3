"""The register estimate against ptxas, in a tiny form."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.helpers import run_inline


@pytest.mark.slow
def test_registers_are_compared_with_ptxas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--only", "conv 1x64", "--draws", "4")
    text, figures = run_inline("cost_model.registers", tmp_path, capsys, *options, "--a-round", "0")
    assert "0 registers a round" in text
    (line,) = figures["lines"]
    assert line["compiled"] == 4
    assert 0 <= line["spill"] <= 1
    assert line["median"] > 0
