"""The benchmark of the period detector in a small form, and its generated traces."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.governor.period import JudgedTrace, make_row
from benchmarks.governor.traces import Load, make_aperiodic_trace, make_periodic_trace
from ekc.governor import Period
from tests.benchmarks.helpers import Run


def test_verdicts_follow_from_the_figures(run: Run) -> None:
    text, figures = run("governor.period", "--rounds", "1", "--seed", "270")
    assert "simulated" in text
    assert figures["held_out"]
    total, bar = figures["total"], figures["bar"]
    assert total["traces"] == sum(x["traces"] for x in figures["rows"]) == 18
    assert total["aperiodic_traces"] == 12
    assert figures["verdicts"]["traces"] == (bar["traces"] <= 18)
    assert figures["verdicts"]["off"] == (total["off"] <= bar["off"])
    assert figures["pass"] is None
    assert total["off"] == pytest.approx(np.mean([x["off"] for x in figures["rows"]]))
    for x in figures["aperiodic_rows"] + figures["multiple_rows"]:
        assert sum(x[v] for v in ("periodic", "multiple", "aperiodic", "too_short")) == pytest.approx(1.0)


def test_wrong_and_missing_periods_count_as_off() -> None:
    trace = make_periodic_trace("plain", 0, 1.0)
    true_s = trace.period_s
    assert true_s is not None
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
    assert trace.period_s is not None
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
