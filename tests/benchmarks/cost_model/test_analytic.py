"""The accuracy of the analytic prior, on made-up recordings."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.helpers import Run
from tests.benchmarks.recordings import write_gemm


def test_prior_is_ranked_against_recordings(run: Run, tmp_path: Path) -> None:
    write_gemm(tmp_path)
    text, figures = run("cost_model.analytic", "--data", str(tmp_path), "--rows", "6")
    assert "recordings of real GPUs" in text
    lines = figures["lines"]
    assert [line["rows"] for line in lines] == [6, 2] * 3 + [8]
    # Made-up watts grow with the number of a row; nothing in a kernel says so.
    assert lines[-1]["of_rows"] < 0.02 < lines[-1]["spread"]
    # Made-up times fall with the tile of a thread, as those that the prior expects do.
    assert lines[2]["spearman"] > 0
