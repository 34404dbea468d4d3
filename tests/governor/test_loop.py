"""The control loop on simulated jobs: budget, beats, memory clock, pauses, and cards with fewer limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.governor.oracle import choose_oracle_clocks
from ekc.governor import phase as phases
from ekc.governor.event_records import (
    Applied,
    Chosen,
    Ended,
    Idled,
    Measured,
    PeriodFound,
    Resumed,
    Shifted,
    Skipped,
    Started,
)
from ekc.governor.job_limits import estimate_payoff
from ekc.governor.loop import MAX_WAIT_S, _ControlLoop, govern
from ekc.governor.protocols import OfferedSettings, Settings
from ekc.governor.request import Policy
from ekc.governor.samples import SensorSamples, concatenate_samples
from ekc.governor.simulation.random_jobs import JOB_KINDS, make_pause, sample_job
from ekc.governor.simulation.simulated_run import JobStage, SimulatedRun
from tests.governor.helpers import (
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


@pytest.mark.parametrize("kind", JOB_KINDS)
def test_loop_saves_energy_within_the_budget(kind: str) -> None:
    made = sample_job(3, kind, "h200", 1500.0)
    run, events = run_governed(made)
    free = run_at_default(made)
    best = choose_oracle_clocks(made, Policy())
    assert run.now() / free.now() - 1 < 0.06
    assert 1 - run.true_j / free.true_j > 0.5 * best.saving
    assert isinstance(events[0], Started)
    assert events[0].simulated
    assert isinstance(events[-1], Ended)
    assert events[-1].joules == pytest.approx(run.read_energy_j(), rel=1e-6)
    assert all(event.format_line() for event in events)
    assert [e.at_s for e in events] == sorted(e.at_s for e in events)


@pytest.mark.parametrize("first_s", [8.0, 24.0])
def test_hooks_are_used_after_a_late_first_step(first_s: float) -> None:
    """Jobs that compile in their first step were once governed by signals to their end."""
    run = SimulatedRun(
        make_job([make_iterations(first_s, stage_seconds=(0.05, first_s, 0.45)), make_iterations(300)]),
        has_hooks=True,
    )
    _, phase = begin_phase(run)
    assert phase.progress.kind == "steps"
    assert phase.progress.period_s == pytest.approx(1.5, rel=0.05)
    assert phase.readings.default_readings[0].pace.beats_error < 0.02


def test_hooks_are_the_first_source_of_progress() -> None:
    _, events = run_governed(make_job([make_iterations(400)]), hooks=True)
    assert select_events(events, PeriodFound)[0].progress == "steps"
    _, events = run_governed(make_job([make_iterations(400)]))
    assert select_events(events, PeriodFound)[0].progress == "period"


def test_aperiodic_work_is_measured_under_the_choice() -> None:
    """A reading of the default whose few blocks agreed by chance once made such a job 7.4 % slower. Job 102
    is the first from 101 on for which the governor does not keep the default."""
    made = sample_job(102, "aperiodic", "h200")
    run, events = run_governed(made, hooks=True)
    assert run.now() / run_at_default(made).now() - 1 < 0.06
    seconds = {
        purpose: max(e.reading.seconds for e in select_events(events, Measured) if e.purpose == purpose)
        for purpose in ("candidate", "check")
    }
    assert seconds["check"] > 3 * seconds["candidate"]
    errors = [e.reading.pace.moved_error for e in select_events(events, Measured) if e.purpose == "default"]
    # Variances are pooled, so errors of readings of one length are similar.
    assert min(errors[2:]) > 0.4 * max(errors[2:])


def test_disturbed_reading_is_repeated() -> None:
    events = govern_run(DisturbedRun(make_job([make_iterations(600)])))
    candidates = [e.reading for e in select_events(events, Measured) if e.purpose == "candidate"]
    assert candidates
    assert all(reading.sm_util > 60 for reading in candidates)
    assert select_events(events, Chosen)


def test_memory_clock_alone_is_predicted_by_its_reading() -> None:
    """The memory clock was once expected to change nothing, so every check would have found another job."""
    run = SimulatedRun(make_job([make_iterations(200)], device="rtx3090"), has_hooks=True)
    meter, phase = begin_phase(run)
    phase.choice = Settings(memory_mhz=5001)
    for _ in range(2):
        assert phases.measure_settings(meter, phase, phase.choice, "candidate")
    expected = phase.predict_choice()
    assert expected.slowdown > 0.03
    assert not phase.readings.has_refuted(expected)
    assert phase.predict_settings(Settings()).slowdown == 0


def test_zero_budget_resets_the_memory_clock() -> None:
    """The memory clock once stayed where the search had set it, which alone cost 5 %."""
    run = SimulatedRun(make_job([make_iterations(400)], device="rtx3090"), has_hooks=True)
    governor = _ControlLoop(run, run, Policy(max_slowdown=0.0), ignore)
    governor._start_s = run.now()
    phase = phases.begin_phase(governor._meter, Policy(), run.list_offered())
    for choice in (Settings(sm_mhz=1600, memory_mhz=5001), Settings(memory_mhz=5001)):
        assert phases.measure_settings(governor._meter, phase, choice, "candidate")
        phase.search, phase.choice = replace(phase.search, memory_mhz=5001), choice
        assert governor._update_choice(phase) == "moved"
        assert phase.choice == Settings()


def test_limits_stay_during_a_pause() -> None:
    _, events = run_governed(make_job([make_iterations(400), make_pause(90.0), make_iterations(400, 1)]))
    (idle,), (back,) = select_events(events, Idled), select_events(events, Resumed)
    # Noticed after a wait and a look at the latest.
    assert 90 - MAX_WAIT_S - 15 < back.idle_s < 100
    between = [e for e in select_events(events, Applied) if idle.at_s <= e.at_s < back.at_s]
    assert not between
    assert not select_events(events, Shifted)


def test_late_job_is_waited_for() -> None:
    _, events = run_governed(make_job([make_pause(60.0), make_iterations(300)]))
    assert isinstance(events[1], Idled)
    assert select_events(events, Chosen)


@pytest.mark.parametrize("seconds", [1.0, 10.0, 30.0])
def test_loop_ends_with_a_short_job(seconds: float) -> None:
    run, events = run_governed(make_job([make_iterations(seconds)]))
    assert isinstance(events[-1], Ended)
    assert not run.is_running()


def test_search_is_skipped_where_it_cannot_pay() -> None:
    run, events = run_governed(make_job([make_iterations(200)]), policy=Policy(remaining_s=60.0))
    (skipped,) = select_events(events, Skipped)
    assert skipped.remaining_s < 60
    assert run.settings() == Settings()
    assert not select_events(events, Applied)


def test_memory_clock_is_lowered_where_memory_is_little_used() -> None:
    lonely = JobStage("arithmetic", 0.995, 1.0, 0.6, 100.0, 6.0, 90.0, 0.0)
    parts = [make_iterations(1200, 0, (1, 5), (0.3, 1.5))]
    made = make_job(parts, "arithmetic alone", "rtx3090", (*STAGES, lonely))
    run, events = run_governed(made, policy=Policy(objective="edp"))
    assert select_events(events, Chosen)[0].settings.memory_mhz == 5001
    free = run_at_default(made)
    assert run.true_j * run.now() < free.true_j * free.now()
    # Where memory is used its clock stays, and no reading is spent on it.
    _, events = run_governed(make_job([make_iterations(600)], device="rtx3090"))
    assert all(e.settings.memory_mhz is None for e in select_events(events, Applied))


class UnsettableRun(SimulatedRun):
    """An actuator that can set nothing."""

    def list_offered(self) -> OfferedSettings:
        return OfferedSettings()

    def apply(self, settings: Settings) -> None:
        raise AssertionError("there is nothing to set")


def test_card_without_limits_is_only_measured() -> None:
    run = UnsettableRun(make_job([make_iterations(120)]))
    events = govern_run(run)
    assert select_events(events, Measured)
    assert not run.is_running()


class CapOnlyRun(SimulatedRun):
    """A card whose clocks cannot be set, but its power cap."""

    def list_offered(self) -> OfferedSettings:
        return OfferedSettings(power_w=super().list_offered().power_w)


def test_card_without_clocks_is_governed_by_caps() -> None:
    made = make_job([make_iterations(900)])
    run = CapOnlyRun(made)
    (chosen,) = select_events(govern_run(run), Chosen)
    assert chosen.settings.power_w is not None
    assert chosen.settings.sm_mhz is None
    free = run_at_default(made)
    assert run.true_j < free.true_j
    assert run.now() < 1.06 * free.now()


class LostGpuRun(SimulatedRun):
    """A probe whose GPU is lost after some looks."""

    record_count = 0

    def record(self, seconds: float):
        self.record_count += 1
        if self.record_count > 4:
            raise OSError("GPU is lost")
        return super().record(seconds)


def test_probe_error_is_raised() -> None:
    run = LostGpuRun(make_job([make_iterations(300)]))
    with pytest.raises(OSError, match="GPU is lost"):
        govern_run(run)


class GappyRun(SimulatedRun):
    """A probe that loses a third of its readings, and all of one sensor."""

    def record(self, seconds: float):
        timeline = super().record(seconds)
        kept = np.random.default_rng(len(timeline)).random(len(timeline)) > 0.33
        names = ("time_s", "power_w", "sm_util", "memory_util", "clock_mhz")
        thin = {name: getattr(timeline, name)[kept] for name in names}
        return replace(timeline, **thin | {"memory_util": np.full(int(kept.sum()), np.nan)})


@pytest.mark.filterwarnings("error")
def test_missing_readings_and_sensor_are_tolerated() -> None:
    made = make_job([make_iterations(600)])
    run = GappyRun(made)
    assert select_events(govern_run(run), Chosen)
    assert run.now() < 1.06 * run_at_default(made).now()


def test_overdue_job_has_no_remaining_time() -> None:
    assert estimate_payoff(Policy(remaining_s=60.0), 100.0, 10.0, 300.0).remaining_s == 0.0


@pytest.mark.parametrize("silence", [1, 2])
def test_card_without_clock_readings_is_governed(silence: int) -> None:
    """The card never reports its clock, or not in every second recording."""

    class SilentRun(SimulatedRun):
        times = 0

        def record(self, seconds: float) -> SensorSamples:
            samples = super().record(seconds)
            self.times += 1
            nothing = np.full(len(samples), np.nan)
            return samples if self.times % silence else replace(samples, clock_mhz=nothing)

    events = govern_run(SilentRun(sample_job(0, "compute", "h200", 900.0)))
    assert select_events(events, Chosen)[0].settings.sm_mhz is not None
    assert isinstance(events[-1], Ended)


PAUSE_S, IDLE_W = 35.0, 90.0
WORK_S = 3.0
"""Seconds of work before a pause."""


class PausingRun(SimulatedRun):
    """A run that pauses during each of its first long waits."""

    def __init__(self, seed: int, pauses: int) -> None:
        super().__init__(sample_job(seed, "aperiodic", "h200", 840.0), seed)
        self.pauses_left, self.paused_s = pauses, 0.0

    def now(self) -> float:
        return super().now() + self.paused_s

    def read_energy_j(self) -> float:
        return super().read_energy_j() + IDLE_W * self.paused_s

    def record(self, seconds: float) -> SensorSamples:
        if seconds < MAX_WAIT_S or not self.pauses_left:
            return self._record_shifted(seconds)
        self.pauses_left -= 1
        before = self._record_shifted(WORK_S)
        at = self.now() + np.arange(0.1, PAUSE_S, 0.1)
        still = SensorSamples(at, np.full(len(at), IDLE_W), *np.zeros((2, len(at))), np.full(len(at), 1980.0))
        self.paused_s += PAUSE_S
        return concatenate_samples(
            concatenate_samples(before, still), self._record_shifted(seconds - PAUSE_S - WORK_S)
        )

    def _record_shifted(self, seconds: float) -> SensorSamples:
        stood_s = self.paused_s
        events = super().record(seconds)
        return replace(events, time_s=events.time_s + stood_s)


@pytest.mark.parametrize("seed", [3, 5])
def test_pause_between_two_looks_is_left_out_of_checks(seed: int) -> None:
    """A pause was once part of the reading, and the choice seemed to draw a fifth less."""
    choices, watts = [], []
    for pauses in (0, 2):
        run, events = PausingRun(seed, pauses), []
        (phase,) = govern(run, run, on_event=events.append).phases
        assert run.pauses_left == 0 or not pauses
        choices.append(phase.choice.sm_mhz)
        watts.append([e.reading.watts for e in select_events(events, Measured) if e.purpose == "check"])
    assert watts[1] == pytest.approx(watts[0], rel=0.03)
    gears = run.list_offered().sm_mhz
    # The stretch before a pause is left out, so the curve differs a little.
    assert abs(gears.index(choices[1]) - gears.index(choices[0])) <= 1
