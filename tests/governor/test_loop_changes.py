"""The control loop on jobs that change, seem to change, or return: new searches, and dropped readings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ekc.governor import phase as phases
from ekc.governor.change_detection import ChangeDetector
from ekc.governor.event_records import (
    Applied,
    Checked,
    Chosen,
    Event,
    EventCallback,
    Measured,
    PeriodFound,
    Shifted,
)
from ekc.governor.job_meter import JobEnded, WatchedStretch
from ekc.governor.loop import _ControlLoop, govern
from ekc.governor.phase import Phase
from ekc.governor.protocols import Settings
from ekc.governor.request import Policy
from ekc.governor.simulation.random_jobs import insert_evaluations, sample_iterations, sample_job
from ekc.governor.simulation.simulated_run import JobStage, SimulatedRun
from tests.governor.helpers import (
    FORWARD_STAGE,
    STAGE_SECONDS,
    STAGES,
    DisturbedRun,
    begin_phase,
    govern_run,
    ignore,
    make_iterations,
    make_job,
    run_at_default,
    run_governed,
    select_events,
)


def test_change_of_the_job_is_found_and_searched() -> None:
    made = make_job([make_iterations(900), make_iterations(1200, 1, (1, 4), (0.3, 0.8)).with_regime(1)])
    run = SimulatedRun(made)
    shifts: list[tuple[Shifted, int]] = []
    chosen: list[Chosen] = []

    def note(event: Event) -> None:
        if isinstance(event, Shifted):
            shifts.append((event, run.get_regime()))
        if isinstance(event, Chosen):
            chosen.append(event)

    govern(run, run, on_event=note)
    ((shift, regime),) = shifts
    assert regime == 1
    assert shift.at_s < 1300
    first, second = chosen
    # Memory-bound work can run at lower clocks.
    assert second.settings.sm_mhz < first.settings.sm_mhz


@pytest.mark.parametrize("hooks", [False, True])
def test_change_at_equal_power_is_found_by_the_beat(hooks: bool) -> None:
    """At the clocks of the first phase this job once ended 7.0 % slower (7.3 % with hooks)."""
    made = sample_job(505, "drifting", "rtx3090")
    run = SimulatedRun(made, has_hooks=hooks)
    shifted: list[int] = []
    govern(run, run, on_event=lambda e: shifted.append(run.get_regime()) if isinstance(e, Shifted) else None)
    assert shifted == [1]
    assert run.now() / run_at_default(made).now() - 1 < 0.06


@pytest.mark.parametrize("hooks", [False, True])
def test_refuted_choice_is_not_used_again(hooks: bool) -> None:
    """The second phase has the same power and beat at the default, and follows the clock much more. The
    choice of the first phase was once used again and again, 8 % slower to the end."""
    stages = (*STAGES, replace(FORWARD_STAGE, core_share=0.45), replace(FORWARD_STAGE, core_share=0.98))
    parts = [make_iterations(600, 1, (1, 5, 3)), make_iterations(4000, 2, (1, 6, 3)).with_regime(1)]
    made = make_job(parts, stages=stages)
    run, events = run_governed(made, hooks=hooks)
    assert run.now() / run_at_default(made).now() - 1 < 0.06
    assert len(select_events(events, Chosen)) == 2
    (shifted,) = select_events(events, Shifted)
    # Found by checks, so without a size.
    assert shifted.format_line() == "the job changed (small)"


def make_governor_after_loss(
    low_s: float,
    seconds: float = 600.0,
    on_event: EventCallback = ignore,
    pause_s: float | None = None,
) -> tuple[_ControlLoop, Phase]:
    """A governor and its new phase, after another phase of a quarter of an hour with `low_s` seconds at 1200
    MHz.

    With a pause between the two phases the remaining time is given.
    """
    run = SimulatedRun(make_job([make_iterations(seconds)]))
    meter, other = begin_phase(run)
    policy = Policy() if pause_s is None else Policy(remaining_s=3000.0 + pause_s)
    governor = _ControlLoop(run, run, policy, on_event)
    governor._start_s = run.now() - 900.0 - (pause_s or 0.0)
    assert phases.measure_settings(meter, other, Settings(sm_mhz=1200), "candidate")
    other.seconds_by_settings = {Settings(): 900.0 - low_s, Settings(sm_mhz=1200): low_s}
    other.default_signature = 2 * other.default_signature  # Other work.
    governor._phases.append(other)
    return governor, governor._learn_phase("large", None)


def test_loss_of_a_late_change_lowers_the_next_slowdown() -> None:
    """The choice for the same work, after a late change that cost 3 % and without one."""
    after, without = (make_governor_after_loss(low_s)[1].choice.sm_mhz for low_s in (200.0, 0.0))
    assert after > without


def test_pause_does_not_offset_a_loss() -> None:
    budgets = [
        make_governor_after_loss(200.0, pause_s=p)[1].search.policy.max_slowdown for p in (0.0, 7200.0)
    ]
    assert budgets[0] < 0.045
    assert budgets[1] == pytest.approx(budgets[0], abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("low_s", [300.0, 600.0])
def test_search_is_repeated_when_the_budget_returns(low_s: float) -> None:
    """The job once stayed at its default, or at the only clock measured within the small budget."""
    governor, phase = make_governor_after_loss(low_s, 7000.0)
    assert phase.search.policy.max_slowdown < 0.005
    assert phase.choice.sm_mhz is None or phase.choice.sm_mhz > 1900
    with pytest.raises(JobEnded):
        governor._watch_phase(phase)
    without_loss = make_governor_after_loss(0.0)[1].choice.sm_mhz
    assert phase.choice.sm_mhz == pytest.approx(without_loss, rel=0.03)


def test_default_chosen_by_a_check_is_left_when_the_budget_returns() -> None:
    events: list[Event] = []
    governor, phase = make_governor_after_loss(0.0, on_event=events.append)
    before = phase.choice
    (lost,) = (p for p in governor._phases if p is not phase)
    usual, lost.seconds_by_settings = lost.seconds_by_settings, {Settings(sm_mhz=1200): 900.0}
    governor._meter.set_limits(Settings(), "the default again")
    assert governor._update_choice(phase) == "moved"
    assert phase.choice == Settings()
    assert events[-1] == Applied(governor._probe.now(), Settings(), "the check moved the choice")
    lost.seconds_by_settings = usual
    assert governor._check_choice(phase, WatchedStretch(governor._meter), 240.0) == "moved"
    assert phase.choice == before


def test_returned_phase_keeps_its_choice() -> None:
    other = make_iterations(600, 1, (1, 4), (0.3, 0.8)).with_regime(1)
    _, events = run_governed(make_job([make_iterations(600), other, make_iterations(900, 2)]))
    assert [s.level for s in select_events(events, Shifted)][-1] == "known"
    assert len(select_events(events, Chosen)) == 2
    assert select_events(events, Applied)[-1].settings.sm_mhz is not None


def test_evaluations_are_no_change_of_the_job() -> None:
    rng = np.random.default_rng(4)
    evaluated = insert_evaluations(rng, make_iterations(1500), np.array([1, 4]), np.array([0.05, 0.4]))
    run, events = run_governed(make_job([evaluated]))
    assert not select_events(events, Shifted)
    assert select_events(events, Checked)
    assert run.now() < 1.06 * run_at_default(make_job([evaluated])).now()


def _make_phase_after_disturbance(run: SimulatedRun) -> Phase:
    """A phase begun in training: a reading of the default in other work, at 75 s, is dropped; one at 125 s
    is kept."""
    meter, phase = begin_phase(run)
    run.record(75 - run.now())
    assert not phases.remeasure_default(meter, phase)
    run.record(125 - run.now())
    assert phases.remeasure_default(meter, phase)
    return phase


def test_default_reading_in_an_evaluation_keeps_the_beat() -> None:
    """Otherwise a job was once 6.4 % slower than its default where 5 % were allowed."""
    other = sample_iterations(np.random.default_rng(2), np.array([1, 2]), np.array([0.05, 0.37]), 60.0)
    run = SimulatedRun(make_job([make_iterations(60), other, make_iterations(60, 1)]))
    phase = _make_phase_after_disturbance(run)
    assert phase.progress.kind == "period"
    assert len(phase.readings.default_readings) == 2


def test_default_reading_of_other_work_is_dropped() -> None:
    """A kept reading of an evaluation with nearly the training's beat once made a job 7.5 % slower."""
    other = sample_iterations(np.random.default_rng(2), np.array([1, 2]), np.array([0.05, 1.45]), 60.0)
    for hooks in (False, True):
        run = SimulatedRun(make_job([make_iterations(60), other, make_iterations(60, 1)]), has_hooks=hooks)
        _make_phase_after_disturbance(run)


def test_fast_drift_is_no_change_of_the_job() -> None:
    """Compared with the last default alone, nine minutes old, this beat twice counted as another."""
    _, events = run_governed(
        make_job([sample_iterations(np.random.default_rng(0), np.arange(1, 4), STAGE_SECONDS, 2400.0, -0.4)])
    )
    assert not select_events(events, Shifted)
    assert select_events(events, PeriodFound)[-1].verdict == "periodic"
    assert len(select_events(events, Checked)) >= 2


def test_reading_of_other_work_is_dropped() -> None:
    other = sample_iterations(np.random.default_rng(2), np.array([1, 2]), np.array([0.05, 1.45]), 90.0)
    run = SimulatedRun(make_job([make_iterations(60), other, make_iterations(60, 1)]))
    meter, phase = begin_phase(run)
    low = Settings(sm_mhz=1700)
    assert phases.measure_settings(meter, phase, low, "candidate")
    strays = phase.progress.bytes_variance
    run.record(80 - run.now())
    assert not phases.measure_settings(meter, phase, low, "check")
    assert len(phase.readings.other_readings) == 1
    assert phase.progress.bytes_variance == strays


def test_steps_of_another_length_are_a_change() -> None:
    """Power and bytes may be much the same."""
    shorter = sample_iterations(np.random.default_rng(2), np.arange(1, 4), 0.6 * STAGE_SECONDS, 60.0)
    run = SimulatedRun(make_job([make_iterations(60), shorter]), has_hooks=True)
    meter, phase = begin_phase(run)
    assert phases.remeasure_default(meter, phase)
    run.record(70 - run.now())
    assert not phases.remeasure_default(meter, phase)


def test_reading_before_a_disturbed_default_is_dropped() -> None:
    class Visited(DisturbedRun):
        """Disturbed while the default is measured in the first check."""

        idle_range_s = (0.0, 0.0)

        def apply(self, settings: Settings) -> None:
            super().apply(settings)
            if settings == Settings() and self.now() > 150 and not self.idle_range_s[1]:
                self.idle_range_s = (self.now(), self.now() + 30)

    events = govern_run(Visited(make_job([make_iterations(900)])))
    read = [e for e in events if isinstance(e, Checked) or (isinstance(e, Measured) and e.purpose == "check")]
    assert [type(e) for e in read[:3]] == [Measured, Measured, Checked]


def test_small_change_is_searched_at_the_default_memory_clock() -> None:
    """At the memory clock of the old work the new work once ran 20 % slower to its end."""
    lonely = JobStage("arithmetic", 0.995, 1.0, 0.6, 100.0, 6.0, 90.0, 0.0)
    mixed = JobStage("some memory", 0.75, 1.0, 0.62, 100.0, 16.0, 80.0, 0.0)
    parts = [
        make_iterations(400, 0, (1, 5), (0.3, 1.5)),
        make_iterations(500, 1, (1, 6), (0.3, 1.2)).with_regime(1),
    ]
    made = make_job(parts, "memory matters later", "rtx3090", (*STAGES, lonely, mixed))
    run, events = run_governed(made, hooks=True)
    first, second = select_events(events, Chosen)
    assert first.settings.memory_mhz == 5001
    (shift,) = select_events(events, Shifted)
    assert shift.level == "small"
    assert second.settings.memory_mhz is None
    assert run.now() < 1.08 * run_at_default(made).now()


def test_change_missed_by_the_detector_is_found_by_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChangeDetector, "is_deviating", lambda self, distance: False)
    made = make_job([make_iterations(300), make_iterations(1500, 1, (1, 4), (0.3, 0.8)).with_regime(1)])
    _, events = run_governed(made)
    (shift,) = select_events(events, Shifted)
    assert 300 < shift.at_s < 900
    first, second = select_events(events, Chosen)
    assert second.settings.sm_mhz < first.settings.sm_mhz


class MiscountedRun(SimulatedRun):
    """A run whose energy counter misses most joules of the first reading."""

    _missed_j: float | None = None

    def read_energy_j(self) -> float:
        joules = super().read_energy_j()
        if self.now() < 20.0:
            return 0.2 * joules
        if self._missed_j is None:
            self._missed_j = 0.8 * joules
        return joules - self._missed_j


def test_phase_with_a_wrong_first_reading_is_measured_again() -> None:
    """Its choice was once set again after each doubt, since the phase seemed to have returned."""
    events = govern_run(MiscountedRun(make_job([make_iterations(1500)])))
    shifts = [event.level for event in select_events(events, Shifted)]
    assert shifts == ["small"]
    *_, last = select_events(events, Chosen)
    assert last.saving > 0.03
