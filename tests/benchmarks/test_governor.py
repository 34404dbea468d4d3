"""Benchmarks of the governor in a small form; verdicts can fail."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from benchmarks.governor import driver_errors, kills
from benchmarks.governor.compare import (
    EventRecorder,
    add_verdicts,
    format_causes,
    judge_job,
    measure_default,
    summarise,
)
from benchmarks.governor.cost import measure_cost
from benchmarks.governor.oracle import choose_oracle_clocks
from benchmarks.governor.period import JudgedTrace, make_row
from benchmarks.governor.replay import LIMITED, Sweep, make_result, read_zeus, summarise_choices
from benchmarks.governor.tempo import make_tempo_trace
from benchmarks.governor.traces import Load, make_aperiodic_trace, make_periodic_trace
from ekc.errors import InvalidInput
from ekc.governor import Period
from ekc.governor.event_records import Shifted
from ekc.governor.request import Policy
from ekc.governor.response_curve import SM_CLOCK
from ekc.governor.response_model import ResponseModel
from ekc.governor.simulation.random_jobs import sample_job
from ekc.governor.simulation.simulated_run import SimulatedRun
from tests.benchmarks.helpers import Run


@pytest.mark.slow
def test_comparison_figures_follow_from_the_jobs(run: Run) -> None:
    text, figures = run("governor.compare", "--seeds", "1", "--seconds", "600")
    assert "simulated" in text
    rows = {row["governor"]: row for row in figures["lines"]}
    assert set(rows) == {
        "ekc govern",
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
    for line in figures["jobs"]["ekc govern"]:
        causes = line["regret_by_cause"]
        assert set(causes) == {"measuring", "searching", "choice", "watching", "late"}
        if line["kind"] != "drifting":  # Regret leaves out the slow swing of power of drifting jobs.
            assert sum(causes.values()) == pytest.approx(line["oracle_saving"] - line["saving"], abs=1e-3)
    assert "watching" in text
    assert figures["pass"] == all(row["pass"] for name, row in rows.items() if name.startswith("ekc"))


def test_regret_of_one_job_is_split_by_cause() -> None:
    job = sample_job(0, "compute", "h200", 300.0)
    oracle = choose_oracle_clocks(job, Policy())
    result = judge_job(job, oracle, measure_default(job), "ekc govern", cast(ResponseModel, None))
    row = summarise("ekc govern", [result])
    assert row["regret"] == pytest.approx(oracle.saving - result["saving"])
    assert sum(result["regret_by_cause"].values()) == pytest.approx(
        oracle.saving - result["saving"], abs=1e-3
    )
    assert "watching" in format_causes([row], oracle.saving)


def test_verdict_fails_where_a_bar_is_missed() -> None:
    good = {
        "governor": "ekc govern",
        "mean_saving": 0.09,
        "share_of_oracle": 0.95,
        "mean_slowdown": 0.04,
        "worst_slowdown": 0.06,
    }
    worse = (
        {"share_of_oracle": 0.89},
        {"mean_slowdown": 0.051},
        {"worst_slowdown": 0.071},
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


@pytest.mark.slow
def test_cost_verdict_follows_from_the_shares(run: Run) -> None:
    text, figures = run("governor.cost", "--seconds", "20")
    assert "scripted NVML, a job of 20 s" in text
    assert len(figures["lines"]) == 2
    for row in figures["lines"]:
        assert row["governor"] > 0
        assert row["pass"] == (row["governor"] + row["guard"] <= row["bar"]["share"] == 0.01)


def test_cost_of_a_short_job() -> None:
    row = measure_cost(instant=True, seconds=5.0)
    assert row["governor"] > 0
    assert row["pass"] == (row["governor"] + row["guard"] <= 0.01)


@pytest.mark.slow
def test_kills_restore_the_settings(run: Run, tmp_path: Path) -> None:
    text, figures = run("governor.kills", "--kills", "1", "--seed", "3")
    assert "scripted NVML, 1 kills each, under nothing, seed 3" in text
    names = ["job", "governor", "guard", "all", "client", "stopped", "daemon"]
    assert [row["killed"] for row in figures["lines"]] == names
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


def test_model_verdict_follows_from_the_errors(run: Run) -> None:
    text, figures = run("governor.predict", "--card", "h200", "--seeds", "2")
    assert "simulated" in text
    sources = [row["from"] for row in figures["lines"]]
    assert sources == ["counters and signals", "signals alone", "mean of other jobs"]
    assert figures["pass"] == all(row.get("pass", True) for row in figures["lines"])


def test_verdicts_follow_from_the_figures(run: Run) -> None:
    text, figures = run("governor.period", "--rounds", "1", "--seed", "270", "--points", "3")
    assert "simulated" in text
    assert figures["held_out"]
    total, bar = figures["total"], figures["bar"]
    assert total["traces"] == sum(x["traces"] for x in figures["rows"]) == 18
    assert total["aperiodic_traces"] == 12
    assert figures["verdicts"]["traces"] == (bar["traces"] <= 18)
    assert figures["verdicts"]["off"] == (total["off"] <= bar["off"])
    assert figures["pass"] is None
    assert total["off"] == pytest.approx(np.mean([x["off"] for x in figures["rows"]]))
    assert [row["traces"] for row in figures["point_rows"]] == [9] * 4
    assert figures["verdicts"]["points"] == all(row["found"] >= row["least"] for row in figures["point_rows"])
    assert figures["partial_rows"][-1]["traces"] == 9
    for x in figures["aperiodic_rows"] + figures["multiple_rows"]:
        assert sum(x[v] for v in ("periodic", "multiple", "aperiodic", "too_short")) == pytest.approx(1.0)


@pytest.mark.slow
def test_limits_are_back_under_a_driver_that_fails(run: Run) -> None:
    """One short job of each kind of failure, under a loop that sets limits all the time."""
    text, figures = run("governor.driver_errors", "--quick", "--jobs", "7", "--parallel", "7", "--seed", "4")
    assert "scripted NVML, 7 jobs, seed 4" in text
    assert [line["kind"] for line in figures["lines"]] == list(driver_errors.KINDS)
    for line in figures["lines"]:
        assert (line["jobs"], line["back"], line["status"], line["output"]) == (1, 1, 1, 1), text


def test_tempo_is_judged_by_the_true_number_of_iterations(run: Run) -> None:
    text, figures = run("governor.tempo", "--jobs", "3", "--seed", "5")
    assert "simulated" in text
    assert 0 < figures["found"] <= 3
    for row in figures["rows"]:
        assert row["readings"] == figures["found"] * int(640 / row["seconds"])
        assert 0 < row["median_error"] <= row["p90_error"]
        assert row["within_1"] <= row["within_2"] <= 1


def test_iterations_are_counted_without_pauses() -> None:
    trace = make_tempo_trace(3)
    begins, ends = trace.edge_s[::2], trace.edge_s[1::2]
    assert (ends > begins).all()
    assert (begins[1:] >= ends[:-1]).all()
    assert trace.count_iterations(begins[4], ends[8]) == pytest.approx(5.0)
    assert trace.count_iterations(ends[4], begins[5]) == pytest.approx(0.0)


def test_wrong_and_missing_periods_count_as_off() -> None:
    trace = make_periodic_trace("plain", 0, 1.0)
    true_s = trace.period_s
    results = [(true_s, "periodic"), (1.2 * true_s, "periodic"), (true_s, "multiple"), (true_s, "aperiodic")]
    judged = [JudgedTrace(trace, 1.0, Period(s, 0.0, v), 0.0, true_s) for s, v in results]
    assert make_row("x", judged)["off"] == 0.75
    assert make_row("x", judged)["fft_off"] == 0.0


def test_load_is_averaged_over_the_window() -> None:
    load = Load(np.array([1.0, 3.0]), np.array([[10.0, 0, 0], [20.0, 0, 0]]))
    means = load.mean(np.array([1.0, 1.5, 4.0]), 1.0)[:, 0]
    assert means == pytest.approx([10.0, 15.0, 20.0])


@pytest.mark.parametrize("kind", ["plain", "sub-periods", "drift", "all at once"])
def test_periodic_trace_repeats_with_its_period(kind: str) -> None:
    trace = make_periodic_trace(kind, 3, 0.1)
    at, power = trace.samples.time_s, trace.samples.power_w
    assert (np.diff(at) >= 0).all()
    assert trace.samples.sensor_s == 0.1
    assert 0.19 < trace.period_s < 23
    later = np.interp(at + trace.period_s, at, power)[at < at[-1] - trace.period_s]
    here = power[at < at[-1] - trace.period_s]
    shuffled = np.random.default_rng(0).permutation(here)
    assert np.mean((later - here) ** 2) < 0.7 * np.mean((later - shuffled) ** 2)


def test_trace_depends_on_the_seed_alone() -> None:
    first, second = (make_aperiodic_trace("telegraph", 5, 1.0).samples.power_w for _ in range(2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, make_aperiodic_trace("telegraph", 6, 1.0).samples.power_w)


def write_sweeps(folder: Path) -> None:
    """Made-up sweeps in the form of the recordings: power follows the cube of the clock, time the clock."""
    for board, caps in (("v100", range(100, 251, 25)), ("a40", range(100, 301, 25))):
        with (folder / f"zeus_power_caps_{board}.csv").open("w", newline="") as file:
            columns = "dataset network batch_size optimizer power_limit time_per_epoch average_power"
            writer = csv.writer(file)
            writer.writerow(columns.split())
            for network, drawn in (("busy", 0.9 * caps[-1]), ("idle", 0.2 * caps[-1])):
                for cap in caps:
                    watts = min(drawn, cap)
                    writer.writerow(["made", network, 8, "none", cap, 100 * (drawn / watts) ** 0.4, watts])
    with (folder / "perseus_gpt3_a100_clocks.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["stage", "instruction", "frequency", "time", "energy", "power_w"])
        for clock in range(855, 1411, 15):
            for instruction, share in (("forward", 1.0), ("backward", 2.0)):
                seconds = share * (0.4 * 1410 / clock + 0.6)
                writer.writerow(
                    [0, instruction, clock, seconds, seconds * (100 + 300 * (clock / 1410) ** 3), 0]
                )


def test_replay_judges_the_chosen_rows(run: Run, tmp_path: Path) -> None:
    write_sweeps(tmp_path)
    text, figures = run("governor.replay", "--data", str(tmp_path), "--draws", "2")
    assert "rows of real GPUs" in text
    rows = {(row["recording"], row["noise"]): row for row in figures["lines"]}
    judged = {key: row for key, row in rows.items() if "pass" in row}
    assert set(judged) == {("all where a limit acts", noise) for noise in (0.0, 0.005, 0.015)}
    assert judged["all where a limit acts", 0.0]["pass"]
    assert judged["all where a limit acts", 0.0]["share_of_best"] >= 0.9
    assert rows["never moves", 0.0]["mean_saving"] == 0
    lowest = rows["always the lowest row", 0.0]
    assert lowest["worst_slowdown"] > 0.07
    assert lowest["beyond"][1] > 0


def test_replay_counts_a_choice_beyond_the_budget() -> None:
    sweep = Sweep("made", SM_CLOCK, np.array([900.0, 1200.0, 1500.0]), np.array([1.2, 1.06, 1.0]), np.ones(3))
    row = summarise_choices(LIMITED, [make_result(sweep, Policy(), place, 1) for place in (1, 2)], 0.0, 1)
    assert row["beyond"] == [0.5, 0.0]
    assert row["worst_slowdown"] == pytest.approx(0.06)
    assert not row["pass"]


def test_replay_names_a_missing_recording(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"zeus_power_caps_a40\.csv"):
        read_zeus(tmp_path, "a40")


@pytest.mark.slow
def test_meter_errors_are_small(run: Run) -> None:
    options = ("--draws", "3", "--seconds", "1", "--seed", "2")
    text, figures = run("metering.meter", *options)
    assert "scripted NVML (no GPU), windows of 1 s, 3 draws a row, seed 2" in text
    assert [row["pass"] for row in figures["rows"] if row["kind"].startswith("a quarter")] == [None, None]
    for row in figures["rows"]:
        assert 0 <= row["held"] <= 1
        assert 0 < row["rms_error"] <= row["largest_error"] < 0.2


@pytest.mark.slow
def test_intervals_of_savings_are_compared_with_the_truth(run: Run) -> None:
    text, figures = run("governor.accounting", "--seeds", "1", "--seconds", "900", "--seed", "5")
    assert "simulated" in text
    assert len(figures["net"]) == 12
    assert figures["static"]


@pytest.mark.slow
def test_caps_and_deadlines_are_held_against_the_simulated_job(run: Run) -> None:
    text, figures = run("governor.objectives", "--seeds", "1", "--seconds", "900", "--seed", "5")
    assert "simulated" in text
    assert figures["objectives"]
    assert figures["saved"]
