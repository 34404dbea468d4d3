"""The benchmark of the period detector in a tiny form, and its generated traces."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import governor_traces

    return governor_traces


def test_it_runs_and_its_verdicts_follow_from_its_figures(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    words = ["governor_period.py", "--rounds", "1", "--seed", "270", "--json", str(file)]
    done = subprocess.run(
        [sys.executable, str(FOLDER / words[0]), *words[1:]], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())
    assert "simulated" in done.stdout
    assert figures["held_out"]
    total, bar = figures["total"], figures["bar"]
    assert total["traces"] == sum(x["traces"] for x in figures["rows"]) == 18
    assert total["aperiodic_traces"] == 12
    assert figures["pass"]["traces"] == (bar["traces"] <= 18)
    assert figures["pass"]["off"] == (total["off"] <= bar["off"])
    assert total["off"] == pytest.approx(np.mean([x["off"] for x in figures["rows"]]))
    for x in figures["aperiodic_rows"] + figures["multiple_rows"]:
        assert sum(x[v] for v in ("periodic", "multiple", "aperiodic", "too_short")) == pytest.approx(1.0)


def test_what_is_not_told_or_far_off_counts(traces: ModuleType) -> None:
    import governor_period as bench

    from ekc.governor import Period

    trace = traces.periodic("plain", 0, 1.0)
    true = trace.period_s
    told = [(true, "periodic"), (1.2 * true, "periodic"), (true, "multiple"), (true, "aperiodic")]
    found = [bench.Judged(trace, 1.0, Period(s, 0.0, v), 0.0, true) for s, v in told]
    assert bench.row("x", found)["off"] == 0.75
    assert bench.row("x", found)["fft_off"] == 0.0


def test_a_load_is_averaged_over_the_window(traces: ModuleType) -> None:
    load = traces.Load(np.array([1.0, 3.0]), np.array([[10.0, 0, 0], [20.0, 0, 0]]))
    means = load.mean(np.array([1.0, 1.5, 4.0]), 1.0)[:, 0]
    assert means == pytest.approx([10.0, 15.0, 20.0])


@pytest.mark.parametrize("kind", ["plain", "sub-periods", "drift", "all at once"])
def test_a_trace_repeats_with_its_period(traces: ModuleType, kind: str) -> None:
    trace = traces.periodic(kind, 3, 0.1)
    at, power = trace.samples.time_s, trace.samples.power_w
    assert (np.diff(at) >= 0).all()
    assert trace.samples.sensor_s == 0.1
    assert 0.19 < trace.period_s < 23
    later = np.interp(at + trace.period_s, at, power)[at < at[-1] - trace.period_s]
    here = power[at < at[-1] - trace.period_s]
    shuffled = np.random.default_rng(0).permutation(here)
    assert np.mean((later - here) ** 2) < 0.7 * np.mean((later - shuffled) ** 2)


def test_a_seed_makes_the_same_trace_again(traces: ModuleType) -> None:
    from governor_aperiodic import aperiodic

    one, two = (aperiodic("telegraph", 5, 1.0).samples.power_w for _ in range(2))
    assert np.array_equal(one, two)
    assert not np.array_equal(one, aperiodic("telegraph", 6, 1.0).samples.power_w)
