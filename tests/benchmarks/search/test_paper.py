"""The ablation of the paper, in a tiny form."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.benchmarks.helpers import Run


@pytest.mark.slow
def test_paper_resumes_from_runs_and_from_measurements(run: Run, tmp_path: Path) -> None:
    records = tmp_path / "records"
    options = ("--only", "MV 1024x8192 a100", "--seeds", "1", "--trials", "8", "--records", str(records))
    text, figures = run("search.paper", *options, "--plots", str(tmp_path), "--processes", "1")
    lines = {line["variant"]: line for line in figures["lines"]}
    assert len(lines) == 7
    assert "virtual s" in text
    assert "a100 (simulated)" in text
    everything, adaptive, latency = (lines[v] for v in ("meter everything", "adaptive", "latency only"))
    assert everything["energy_median"] == everything["metered"] == 1.0
    assert min(line["metering_s"] for line in lines.values()) > 6.5, "the naive schedule alone takes as long"
    assert latency["error"] is None, "nothing was predicted"
    assert figures["adaptive"]["bar"] == {"energy_median": 1.01, "metered": 0.15}
    assert figures["pass"] == (adaptive["energy_median"] <= 1.01 and adaptive["metered"] <= 0.15)
    assert figures["saving_within_a_run"]["pairs"] == 1
    # A bootstrap says nothing of a maximum.
    assert set(figures["saving_within_a_run"]) == {"pairs", "median", "median_interval", "most"}
    assert re.search(r"median \S+% \(\S+% to \S+%\), maximum \S+%, 1 of 1 pairs", text)
    # Finished runs are read; where only the measurements are left, the runs come out the same.
    again, same = run("search.paper", *options, "--processes", "1")
    assert same == figures
    assert "mJ," not in again
    (log,) = records.glob("*.jsonl")
    log.unlink()
    _, filed = run("search.paper", *options, "--processes", "1")
    unlike = {"search_s"}
    assert [{k: v for k, v in x.items() if k not in unlike} for x in filed["lines"]] == [
        {k: v for k, v in x.items() if k not in unlike} for x in figures["lines"]
    ]
