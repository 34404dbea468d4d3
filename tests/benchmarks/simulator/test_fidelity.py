"""The fidelity of simulated devices, on made-up recordings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.helpers import Run
from tests.benchmarks.recordings import write_gemm


@pytest.mark.slow
def test_fidelity_scores_rows_that_were_not_fitted(run: Run, tmp_path: Path) -> None:
    write_gemm(tmp_path)
    options = ("--only", "clblast", "--rows", "6")
    text, figures = run("simulator.fidelity", "--data", str(tmp_path), *options)
    assert "all predictions are simulated" in text
    latency = [line for line in figures["lines"] if line["what"].startswith("latency")]
    assert [line["how"] for line in latency] == ["6 compiled", "not compiled, estimated"] * 3
    for line in latency:
        assert "(simulated)" in line["what"]
        assert line["shipped"]["rows"] > 0
        assert -1 <= line["trivial"]["minus thread tile"]["spearman"] <= 1
    # Two rows of eight were not compiled; made-up times are not met, and the verdict says so.
    assert latency[1]["shipped"]["rows"] == 2
    power = [line for line in figures["lines"] if line["what"].startswith("power")]
    for line in power:
        held_out = {one["rows"] for one in (line["shipped"], *line["trivial"].values())}
        assert len(held_out) == 1, "ours and what it must beat are scored on the same rows"
    assert power[2]["shipped"]["rows"] < 6
    assert figures["pass"] == all(line["pass"] for line in figures["lines"])
    assert {one["device"] for one in figures["registers"]} == {"a100", "rtx3090", "rtx2080ti"}
