"""The search on recordings, in a tiny form."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.helpers import Run
from tests.benchmarks.recordings import write_hotspot


@pytest.mark.slow
def test_search_beats_random_search_on_a_smooth_table(run: Run, tmp_path: Path) -> None:
    write_hotspot(tmp_path)
    options = ("--data", str(tmp_path), "--only", "hotspot A4000 energy", "--seeds", "3", "--trials", "24")
    text, figures = run("search.quality", *options, "--kernel-tuner", "/bin/false")
    ours, drawn = figures["lines"]
    assert [ours["search"], drawn["search"]] == ["ekc", "random search"]
    assert "Kernel Tuner not installed" in text
    for line in (ours, drawn):
        assert line["runs"] == 3
        assert line["evaluations"] == line["shortest_run"] == 24
        assert 1 <= line["median"] <= line["half_median"]
        assert line["median"] <= line["p90"]
        assert "charged_s" not in line
    assert ours["median"] <= drawn["median"]
    # The bar is for 100 evaluations.
    assert "pass" not in ours
    assert "no bar here" in text
