"""The comparison of governors on short jobs; its verdicts can fail."""

from __future__ import annotations

from typing import cast

import pytest

from benchmarks.governor.baselines import find_oracle_clocks
from benchmarks.governor.compare import (
    EventRecorder,
    add_verdicts,
    format_table,
    judge_job,
    measure_default,
    summarise,
)
from benchmarks.governor.predict import BoostedModel
from ekc.governor.events import Shifted
from ekc.governor.policy import Policy
from ekc.governor.simulation.random_jobs import sample_job
from ekc.governor.simulation.run import SimulatedRun
from tests.benchmarks.helpers import Run


@pytest.mark.slow
def test_comparison_figures_follow_from_the_jobs(run: Run) -> None:
    text, figures = run("governor.compare", "--seeds", "1", "--seconds", "600")
    assert "simulated" in text
    rows = {row["governor"]: row for row in figures["lines"]}
    assert set(rows) == {
        "ekc govern",
        "ekc govern, model",
        "ekc govern, step hooks",
        "GPOEO as published",
        "GPOEO, plain energy",
        "ODPP",
        "Zeus caps, step hooks",
    }
    assert figures["simulated"]
    for name, row in rows.items():
        lines = figures["jobs"][name]
        assert row["jobs"] == len(lines) == 12
        assert row["mean_saving"] == pytest.approx(sum(x["saving"] for x in lines) / 12)
        assert row["worst_slowdown"] == max(x["slowdown"] for x in lines)
        assert ("pass" in row) == name.startswith("ekc")
        assert row["regret"] == pytest.approx(figures["oracle"]["mean_saving"] - row["mean_saving"])
    assert rows["ekc govern"]["counter_windows"] == 0
    for line in figures["jobs"]["ekc govern"]:
        causes = line["regret_by_cause"]
        assert set(causes) == {"measuring", "searching", "choice", "watching", "late"}
        if line["kind"] != "drifting":  # Regret leaves out the slow swing of power of drifting jobs.
            assert sum(causes.values()) == pytest.approx(line["oracle_saving"] - line["saving"], abs=1e-3)
    assert "watching" in text
    assert rows["ekc govern, model"]["counter_windows"] >= 12
    assert figures["pass"] == all(row["pass"] for name, row in rows.items() if name.startswith("ekc"))


def test_regret_of_one_job_is_split_by_cause() -> None:
    job = sample_job(0, "compute", "h200", 300.0)
    oracle = find_oracle_clocks(job, Policy())
    result = judge_job(job, oracle, measure_default(job), "ekc govern", cast(BoostedModel, None))
    row = summarise("ekc govern", [result])
    assert row["counter_windows"] == 0
    assert row["regret"] == pytest.approx(oracle.saving - result.saving)
    assert result.regret_by_cause is not None
    assert sum(result.regret_by_cause.values()) == pytest.approx(oracle.saving - result.saving, abs=1e-3)
    assert "ekc govern" in format_table([row], oracle.saving, oracle.slowdown)


def test_verdict_fails_where_a_bar_is_missed() -> None:
    good = {
        "governor": "ekc govern",
        "mean_saving": 0.09,
        "share_of_oracle": 0.95,
        "mean_slowdown": 0.04,
        "worst_slowdown": 0.06,
        "extra_windows": 0,
    }
    worse = (
        {"share_of_oracle": 0.89},
        {"mean_slowdown": 0.051},
        {"worst_slowdown": 0.071},
        {"extra_windows": 1},
    )
    for change in ({}, *worse):
        rows = [good | change]
        add_verdicts(rows)
        assert rows[0]["pass"] == (not change)
    rival = good | {"governor": "ODPP", "mean_saving": 0.1}
    rows = [dict(good), rival]
    add_verdicts(rows)
    assert not rows[0]["pass"]
    rows = [dict(good), rival | {"mean_saving": 0.08}]
    add_verdicts(rows)
    assert rows[0]["pass"]


def test_shifts_are_judged_by_the_true_phase() -> None:
    recorder = EventRecorder(SimulatedRun(sample_job(0, "compute", "h200", 60.0)))
    assert recorder.count_shifts(2) == (0, 1)
    recorder.events = [(Shifted(1.0, "large", 0.5), 0), (Shifted(9.0, "small", 0.2), 1)]
    assert recorder.count_shifts(2) == (1, 0)
    recorder.events.append((Shifted(9.0, "known", 0.0), 1))
    assert recorder.count_shifts(2) == (1, 0)
