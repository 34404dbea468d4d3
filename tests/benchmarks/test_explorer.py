"""The benchmark of the explorer, in a tiny form."""

from __future__ import annotations

import pytest

from tests.benchmarks.helpers import Run


@pytest.mark.slow
def test_next_steps_are_timed_and_ranked(run: Run) -> None:
    text, figures = run("explorer.steps", "--only", "matmul", "--schedules", "2", "--steps", "4")
    (line,) = figures["lines"]
    assert "a100 (simulated)" in text
    assert line["next_steps"] > 10
    assert all(line[f"{stage}_s"][0] > 0 for stage in ("list", "figures", "rules_cpu", "list_cpu"))
    assert line["rules_cpu_s"][0] < line["list_cpu_s"][0]
    assert min(line["latency_s_pick"][0], line["energy_j_pick"][0]) >= 1
    assert figures["pass"] == line["pass"]
