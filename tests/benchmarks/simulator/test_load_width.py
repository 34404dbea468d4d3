"""The gain of wider loads, on made-up recordings."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from tests.benchmarks.helpers import Run

NAMES = "MWG NWG KWG MDIMC NDIMC MDIMA NDIMB KWI VWM VWN STRM STRN SA SB"
FILES = ("a100_gemm_energy.csv.gz", "clblast_gemm_rtx_3090.csv.gz", "clblast_gemm_rtx_2080_ti.csv.gz")


def test_pairs_are_counted_by_staging(run: Run, tmp_path: Path) -> None:
    """Wider is faster by a quarter where the operand is shared, slower by as much where it is not."""
    rows = []
    for vwn in (1, 2):
        for sb in (0, 1):
            values = (32, 64, 32, 8, 8, 8, 8, 2, 2, vwn, 0, 0, 0, sb)
            milliseconds = (20 if sb else 10) * (1.25 if (vwn == 1) == bool(sb) else 1.0)
            rows.append(dict(zip(NAMES.split(), values, strict=True)) | {"time_ms": milliseconds})
    for name in FILES:
        with gzip.open(tmp_path / name, "wt") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    text, figures = run("simulator.load_width", "--data", str(tmp_path), "--pairs", "2")
    assert "of 6 pairs the wider was faster in 50%" in text
    assert [(x["way"], x["pairs"], x["faster"]) for x in figures["lines"]] == [
        ("shared", 1, 1.0),
        ("global", 1, 0.0),
    ] * 3
    for x in figures["lines"]:
        assert x["ratio"] == pytest.approx(1.25 if x["way"] == "shared" else 0.8)
        # Only the pair from global memory is among the fastest fifth.
        assert x.get("compiled", 0) == (x["way"] == "global")
    assert all(x["recorded_ratio"] == pytest.approx(0.8) for x in figures["lines"] if "compiled" in x)
    assert all(0.5 < x["simulated_ratio"] < 2.0 for x in figures["lines"] if "compiled" in x)
