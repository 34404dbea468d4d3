"""Kills of the governor's processes: all kinds in a slow run, the governor in a fast one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.governor import kills
from tests.benchmarks.helpers import Run


@pytest.mark.slow
def test_kills_restore_the_settings(run: Run, tmp_path: Path) -> None:
    text, figures = run("governor.kills", "--kills", "1", "--seed", "3")
    assert "scripted NVML, 1 kills each, seed 3" in text
    assert [row["killed"] for row in figures["lines"]] == ["job", "governor", "guard", "all"]
    for row in figures["lines"]:
        (case,) = row["cases"]
        assert case["restored"] == (row["killed"] == "all")
        assert row["bar"]["back_s"] == (None if row["killed"] == "all" else 5.0)
        assert row["pass"] == (case["back_s"] <= (row["bar"]["back_s"] or 1e9) and case["job_unharmed"])
        assert case["job_unharmed"]


def test_killed_governor_leaves_the_job_and_its_settings(tmp_path: Path) -> None:
    case = kills.kill_governor(kills.GovernedProcesses(tmp_path))
    assert case.job_unharmed
    assert math.isfinite(case.back_s)
