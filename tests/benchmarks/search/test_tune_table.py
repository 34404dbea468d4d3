"""The table of tuned operators, in a tiny form."""

from __future__ import annotations

import pytest

import ekc
from benchmarks.search import tune_table
from ekc.search.data.result import Trial
from ekc.search.sketches.naive import make_naive_schedule
from tests.benchmarks.helpers import Run


@pytest.mark.slow
def test_kept_kernels_are_verified(run: Run) -> None:
    text, figures = run("search.tune_table", "--only", "MM 127x255x63", "--trials", "8")
    (line,) = figures["lines"]
    assert "a100 (simulated)" in text
    assert "PTX was executed on the CPU" in text
    assert line["operator"] == "MM 127x255x63"
    assert line["kept"] >= 1
    assert line["problems"] == []
    assert line["trials"] == 8
    assert line["best_latency_s"] <= 1.05 * line["fastest_latency_s"]
    assert line["bar"]["problems"] == 0
    assert figures["pass"] == line["pass"]


@pytest.mark.slow
def test_winner_is_compared_with_the_schedule_by_hand(run: Run) -> None:
    text, figures = run("search.tune_table", "--only", "MM 4096^3 by hand", "--trials", "4", "--side", "256")
    (line,) = figures["lines"]
    assert "by hand" in text
    assert line["operator"] == "MM 256^3"
    assert line["hand_latency_s"] > 0
    assert line["bar"]["latency_s"] == line["hand_latency_s"]
    assert line["pass"] is False or line["fastest_latency_s"] <= line["hand_latency_s"]


def test_wrong_kept_kernel_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    op = ekc.matmul(16, 16, 16)
    trial = Trial(make_naive_schedule(op), "naive", "ok")
    assert tune_table.find_problems(op, [trial]) == []
    monkeypatch.setattr(tune_table, "ARCHITECTURES", ("sm_80", "sm_12"))
    (problem,) = tune_table.find_problems(op, [trial])
    assert "sm_12" in problem
