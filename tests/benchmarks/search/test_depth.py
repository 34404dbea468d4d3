"""The depth of the search, in a tiny form."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.helpers import Run


@pytest.mark.slow
def test_depth_is_the_ratio_to_a_longer_run(run: Run, tmp_path: Path) -> None:
    options = ("--only", "MV", "--seeds", "2", "--trials", "8", "--long", "16", "--random", "40")
    text, figures = run("search.depth", *options, "--records", str(tmp_path / "kept"))
    (line,) = figures["lines"]
    assert "a100 (simulated)" in text
    assert len(line["winners_s"]) == 2
    assert line["ratio"]["long"] == pytest.approx(sum(line["winners_s"]) / 2 / line["long_s"])
    assert min(line["random_s"], line["long_s"]) > 0
    assert figures["pass"] == line["pass"] == (max(line["ratio"].values()) <= 1.01)
    assert line["without_luck"].keys() == line["ratio"].keys()


@pytest.mark.slow
def test_depth_without_residual_has_no_luck(run: Run, tmp_path: Path) -> None:
    options = ("--only", "MV", "--seeds", "1", "--trials", "4", "--long", "8", "--random", "20")
    text, figures = run("search.depth", *options, "--no-residual", "--records", str(tmp_path / "kept"))
    (line,) = figures["lines"]
    assert "a100 (simulated, no residual)" in text
    assert line["without_luck"] is None
