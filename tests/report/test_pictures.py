"""Pictures of a run: they show what is in the run, simulated figures say so, refusals name the choices."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ekc.errors import InvalidInput
from ekc.report.pictures import PICTURES, draw_picture
from ekc.report.run_data import RunData, TrialColumns
from ekc.report.theme import choose_axis
from ekc.report.trial_pictures import compute_best_so_far, compute_front
from ekc.search.data.trial import Trials
from ekc.search.run_data.from_result import collect_run
from ekc.search.tuning_result import TuningResult


@pytest.mark.parametrize("name", PICTURES)
def test_picture_of_a_simulated_run_says_so(name: str, run_data: RunData) -> None:
    figure = draw_picture(run_data, name)
    assert figure.layout.title.text.endswith("(simulated)")
    device = replace(run_data.data.device, simulated=False, label="GPU")
    real = replace(run_data, data=replace(run_data.data, device=device))
    assert "simulated" not in draw_picture(real, name).layout.title.text
    assert figure.data


def test_front_shows_every_trial_with_its_figures(run_data: RunData) -> None:
    figure = draw_picture(run_data, "front")
    trials = run_data.trials
    shown = {trace.name: trace for trace in figure.data if trace.xaxis == "x"}
    assert len(shown["metered"].x) == int(trials.metered.sum())
    known = trials.ok & ~trials.metered & np.isfinite(trials.energy_j)
    assert len(shown["predicted"].x) == int(known.sum())
    best = run_data.named["best"]
    assert shown["best"].x[0] == pytest.approx(best.latency_s * 1e6, rel=1e-4)
    counted = f"{len(trials)} trials, {int(trials.metered.sum())} metered"
    assert counted in figure.layout.title.subtitle.text


def test_predictions_are_beside_the_trivial_predictors(run_data: RunData) -> None:
    records = run_data.data.predictions
    titles = [a.text for a in draw_picture(run_data, "predicted").layout.annotations]
    error = 100 * np.median([abs(one.predicted_j / one.measured_j - 1) for one in records])
    assert titles[0] == f"energy model: error {error:.1f} %"
    assert [t.split(":")[0] for t in titles] == ["energy model", "latency x power", "P0 t + E0"]


def test_causes_add_up_to_the_energy_of_the_model(run_data: RunData, result: TuningResult) -> None:
    from ekc import devices
    from ekc.codegen.generate import compile_schedule

    device = devices.open("a100")
    kernel = compile_schedule(result.best.schedule, device.arch, device.limits)
    assert run_data.causes is not None
    joules = run_data.causes.joules[run_data.causes.roles.index("best")].sum()
    assert joules == pytest.approx(device.break_down_energy(kernel).energy_j)  # type: ignore[attr-defined]


def test_importance_comes_with_the_error_of_its_model(run_data: RunData) -> None:
    assert {(i.inputs, i.figure) for i in run_data.importances} == {
        (inputs, figure) for inputs in ("decisions", "features") for figure in ("energy", "latency")
    }
    subtitle = draw_picture(run_data, "importance").layout.title.subtitle.text
    for i in run_data.importances:
        assert f"{i.figure} by {i.inputs}: {100 * max(i.explained, 0):.0f} % of the variance" in subtitle
        assert (i.explained >= 0.5) == i.is_useful
    assert subtitle.count("do not rely on it") == sum(not i.is_useful for i in run_data.importances)


def test_trials_without_energy_are_counted_and_not_called_predicted(run_data: RunData) -> None:
    trials = run_data.trials
    energy = np.where(trials.metered, trials.energy_j, np.nan)
    some = np.arange(len(trials)) < 20
    metered, energy = trials.metered & some, np.where(some, energy, np.nan)
    timed = replace(run_data.data, objective="latency")
    run = replace(run_data, data=timed, trials=replace(trials, metered=metered, energy_j=energy))
    figure = draw_picture(run, "progress")
    count = int(metered.sum())
    rest = int(trials.ok.sum()) - count
    assert f"{count} metered, 0 predicted, {rest} only timed" in figure.layout.title.subtitle.text
    assert {trace.name for trace in figure.data} == {"metered", "not metered", "best so far"}


def test_progress_says_why_its_line_rises(run_data: RunData) -> None:
    trials = run_data.trials
    count = len(trials)
    rising = replace(
        trials,
        latency_s=np.where(np.arange(count) < count // 2, 2e-6, 1e-6),
        energy_j=np.where(np.arange(count) < count // 2, 1e-4, 2e-4),
    )
    words = "the line rises where a faster kernel is found: the choice is at most 5 % slower than the fastest"
    for changed, shown in ((rising, True), (replace(rising, energy_j=np.linspace(2e-4, 1e-4, count)), False)):
        figure = draw_picture(replace(run_data, trials=changed), "progress")
        assert (words in figure.layout.title.subtitle.text) is shown


def test_run_without_energies_has_no_empty_panels(result: TuningResult) -> None:
    unknown = {"energy_j": None, "energies_j": (), "power_w": None, "metered": False}
    timed = [replace(t, **unknown) for t in result.trials[:1]]
    bare = replace(result, trials=Trials(timed), features=None, objective="latency")
    with pytest.raises(InvalidInput, match="picture front: no energy of a trial was metered or predicted"):
        bare.plot("front")
    figure = bare.plot("progress")
    assert "xaxis2" not in figure.layout
    assert "1 trial, 0 metered" in figure.layout.title.subtitle.text


def test_conditions_and_tables_are_those_of_the_objective_and_the_clocks(result: TuningResult) -> None:
    latency = collect_run(replace(result, objective="latency"), ())
    assert dict(latency.conditions)["objective"] == "latency"
    assert latency.clock_front is None
    front = (replace(result.best, clock_mhz=600.0), replace(result.best, clock_mhz=900.0))
    energy = collect_run(replace(result, clock_front=front), ())
    assert dict(energy.conditions)["objective"] == "energy, at most 5 % slower than the fastest"
    assert energy.clock_front is not None
    assert [row[0] for row in energy.clock_front.rows] == ["600", "900"]


@pytest.mark.parametrize(("spread", "kind"), [(3.9, None), (4.1, "log")])
def test_narrow_axis_is_linear_and_a_wide_one_has_whole_numbers(spread: float, kind: str | None) -> None:
    axis = choose_axis(np.array([5.0, np.nan, 5 * spread]))
    assert axis.get("type") == kind
    assert axis.get("tickformat") == ("," if kind else None)


def test_unknown_picture_is_refused_with_the_names(result: TuningResult) -> None:
    with pytest.raises(InvalidInput) as refused:
        result.plot("fornt")
    assert str(refused.value) == (
        "picture: no 'fornt'; choose one of front, progress, roofline, predicted, importance, energy, "
        "explanation, space; did you mean 'front'?"
    )
    with pytest.raises(InvalidInput, match="no 3; choose one of"):
        result.plot(3)  # type: ignore[arg-type]


def test_picture_without_data_is_refused_with_the_reason(result: TuningResult) -> None:
    with pytest.raises(InvalidInput, match="picture predicted: 0 kernels metered after"):
        replace(result, predictions=()).plot("predicted")
    real = replace(result, device=replace(result.device, name="GPU", label="GPU", simulated=False))
    with pytest.raises(InvalidInput, match="picture energy: GPU does not tell where its energy goes"):
        real.plot("energy")


def test_without_plotly_one_line_names_the_extra() -> None:
    code = """
import sys
sys.modules["plotly"] = None
from ekc.cli import main
raise SystemExit(main(["tune", "matvec", "8", "8", "--target", "a100", "--report", "r.html"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ekc: pictures of a run need plotly: pip install 'ekc[plot]'\n"


FIGURES = st.lists(
    st.tuples(st.floats(1, 9), st.floats(1, 9), st.booleans(), st.booleans()), min_size=1, max_size=12
)


@given(FIGURES)
def test_no_metered_trial_is_better_than_the_front(rows: list[tuple[float, float, bool, bool]]) -> None:
    trials = make_trials(rows)
    front = compute_front(trials)
    points = np.stack([trials.latency_s, trials.energy_j], axis=1)
    metered = np.flatnonzero(trials.metered)
    assert set(front) <= set(metered)
    for row in metered:
        assert (points[front] <= points[row]).all(axis=1).any()
    latency, energy = points[front].T
    assert (np.diff(latency) > 0).all()
    assert (np.diff(energy) < 0).all()


@given(FIGURES, st.floats(0, 1))
def test_best_so_far_is_that_of_a_loop(rows: list[tuple[float, float, bool, bool]], slack: float) -> None:
    trials = make_trials(rows)
    costs = trials.energy_j * trials.latency_s
    found = compute_best_so_far(trials.latency_s, trials.energy_j, costs, trials.ok, slack)
    for end in range(1, len(rows) + 1):
        seen = [(t, e) for t, e, ok, _ in rows[:end] if ok]
        fastest = min((t for t, _ in seen), default=np.inf)
        allowed = [(t * e, e) for t, e in seen if t <= fastest * (1 + slack)]
        least = [e for cost, e in allowed if cost == min(allowed)[0]]
        assert found[end - 1] in least if allowed else np.isnan(found[end - 1])


def make_trials(rows: list[tuple[float, float, bool, bool]]) -> TrialColumns:
    """Trials of latency, energy, whether it works, whether it is metered."""
    latency, energy, ok, metered = (np.array(column) for column in zip(*rows, strict=True))
    unknown = np.full(len(rows), np.nan)
    return TrialColumns(
        latency_s=np.where(ok, latency, np.nan),
        energy_j=np.where(ok, energy, np.nan),
        energy_low_j=unknown,
        energy_high_j=unknown,
        metered=metered & ok,
        metering_s=unknown,
        dram_bytes=unknown,
    )
