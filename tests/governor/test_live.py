"""Sessions, groups, advice, logs and plots, on simulated jobs and with failing loops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ekc.errors import ActuatorError, InvalidInput
from ekc.governor.event_records import Event, event_to_json, to_plain_json
from ekc.governor.live import session
from ekc.governor.live.governed_job import KILLED_STATUS, CommandJob
from ekc.governor.live.group import GovernedUnit, GroupActuator, GroupProbe, make_simulated_unit
from ekc.governor.live.job_report import GovernorLog, build_report
from ekc.governor.live.session import GovernorSession
from ekc.governor.live.steps import StepCounter, StepReader
from ekc.governor.protocols import Settings
from ekc.governor.samples import SensorSamples
from ekc.governor.simulation.card import SIMULATED_CARDS
from ekc.governor.simulation.random_jobs import JOB_KINDS, sample_job
from ekc.governor.simulation.simulated_run import SimulatedRun
from ekc.processes.group_signals import EXTERNAL_SIGNALS
from tests.scripted.nvml.boards import ROOT


class RecordingListener:
    """A listener that keeps what it gets."""

    def __init__(self) -> None:
        self.troubles: list[str] = []
        self.sample_count = 0

    def on_event(self, governor_log: GovernorLog, event: Event) -> None:
        assert event_to_json(governor_log.name, event)["event"] == type(event).__name__

    def on_samples(self, governor_log: GovernorLog) -> None:
        self.sample_count = len(governor_log.trace)

    def on_trouble(self, governor_log: GovernorLog, line: str) -> None:
        self.troubles.append(line)


def _make_run(seconds: float = 600.0, seed: int = 0) -> SimulatedRun:
    return SimulatedRun(sample_job(seed, "compute", "h200", seconds), seed)


def run_session(run: SimulatedRun, loop: Callable[..., object]) -> tuple[GovernorLog, RecordingListener]:
    """Log and listener of a session of one unit."""
    listener = RecordingListener()
    (log,) = GovernorSession([GovernedUnit("a job (simulated)", run, run)], loop, listener).wait()
    return log, listener


def set_two_clocks(probe: object, actuator: SimulatedRun, hear: object) -> None:
    """A loop that sets something twice."""
    for mhz in (1500, 1200):
        actuator.apply(Settings(sm_mhz=mhz))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ActuatorError("the driver said no"), "the driver said no"),
        (ZeroDivisionError("oh"), "a bug in ekc: ZeroDiv"),
    ],
)
def test_failed_loop_restores_the_settings(error: Exception, words: str) -> None:
    run = _make_run()

    def fails(probe: object, actuator: SimulatedRun, hear: object) -> None:
        actuator.apply(Settings(sm_mhz=1200))
        raise error

    book, listener = run_session(run, fails)
    assert run.settings() == Settings()
    assert len(listener.troubles) == 1
    assert "ungoverned, at its previous settings" in listener.troubles[0]
    assert words in listener.troubles[0]
    assert book.problem == listener.troubles[0]
    assert "not to the end" in "\n".join(build_report(book).format_lines())


class RefusingRun(SimulatedRun):
    """An actuator that sets one limit and then refuses."""

    refusal: Exception = ActuatorError("the driver said no")

    def apply(self, settings: Settings) -> None:
        if self.settings() != Settings():
            raise self.refusal
        super().apply(settings)


@pytest.mark.parametrize("refusal", [ActuatorError("the driver said no"), OSError("no lock")])
def test_failed_restore_is_reported(refusal: Exception) -> None:
    run = RefusingRun(sample_job(0, "compute", "h200", 600.0), 0)
    run.refusal = refusal
    _, listener = run_session(run, set_two_clocks)
    (line,) = listener.troubles
    assert line.count(str(refusal)) == 1
    assert "may stay until it ends" in line
    assert "at its previous settings" not in line


def test_restore_is_retried_while_the_job_runs() -> None:
    """An actuator that refuses for a while, as during a restart of a daemon."""

    class Away(SimulatedRun):
        def apply(self, settings: Settings) -> None:
            if self.now() < 100.0 and self.settings() != Settings():
                raise ActuatorError("zeusd does not answer")
            super().apply(settings)

    run = Away(sample_job(0, "compute", "h200", 600.0), 0)
    book, listener = run_session(run, set_two_clocks)
    assert run.settings() == Settings()
    assert 100.0 <= run.now() < 110.0
    assert listener.troubles == [book.problem, "previous settings are back"]


def test_lost_gpu_does_not_keep_its_group_slow() -> None:
    lost, others = RefusingRun(sample_job(0, "compute", "h200", 600.0), 0), [_make_run(), _make_run()]
    actuator = GroupActuator([lost, *others])
    actuator.apply(Settings(sm_mhz=1200))
    with pytest.raises(ActuatorError, match="said no"):
        actuator.apply(Settings())
    assert [x.settings() for x in others] == [Settings()] * 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1])
def test_early_signal_ends_the_job_not_the_governor(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(subprocess.Popen[bytes]):
        """The signal arrives right after the start of the command."""

        def __init__(self, words: list[str], **options: Any) -> None:
            super().__init__(words, **options)
            os.kill(os.getpid(), number)

    monkeypatch.setattr(subprocess, "Popen", Late)
    # Processes in the background may have inherited an ignored signal, which the job would inherit too.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        job = CommandJob(["sleep", "60"])
        assert job.wait() == KILLED_STATUS + number
        job.restore_signals()
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_bad_command_restores_the_signals() -> None:
    before = [signal.getsignal(number) for number in EXTERNAL_SIGNALS]
    with pytest.raises(InvalidInput, match="no/such"):
        CommandJob(["/no/such/command"])
    assert [signal.getsignal(number) for number in EXTERNAL_SIGNALS] == before


def test_hanging_loop_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "LOOP_EXIT_TIMEOUT_S", 0.05)
    run, listener, forever = _make_run(), RecordingListener(), threading.Event()
    began = time.monotonic()
    (book,) = GovernorSession([GovernedUnit("GPU 0", run, run)], lambda *_: forever.wait(), listener).finish()
    assert time.monotonic() - began < 5
    assert book.problem is not None
    assert "has not answered" in book.problem
    forever.set()


def test_group_is_set_alike_and_its_power_is_summed() -> None:
    runs = [_make_run(seed=0), _make_run(seed=0)]
    actuator, probe = GroupActuator(runs), GroupProbe(runs)
    actuator.apply(Settings(sm_mhz=1500))
    assert [run.settings() for run in runs] == [Settings(sm_mhz=1500)] * 2
    assert actuator.settings() == Settings(sm_mhz=1500)
    assert actuator.list_offered() == runs[0].list_offered()
    joules = probe.read_energy_j()
    samples = probe.record(20.0)
    assert isinstance(samples, SensorSamples)
    alone = _make_run(seed=0)
    alone.apply(Settings(sm_mhz=1500))
    one = alone.record(20.0)
    assert np.nanmean(samples.power_w) == pytest.approx(2 * np.nanmean(one.power_w), rel=0.02)
    assert np.nanmean(samples.sm_util) == pytest.approx(np.nanmean(one.sm_util), rel=0.05)
    assert samples.power_limit_w == pytest.approx(2 * one.power_limit_w, nan_ok=True)
    assert probe.read_energy_j() - joules == pytest.approx(2 * alone.read_energy_j(), rel=0.05)
    assert actuator.simulated
    assert probe.simulated
    assert probe.is_running()


def test_group_offers_the_values_of_all_members() -> None:
    other = SimulatedRun(sample_job(0, "compute", "rtx3090", 60.0), 0)
    offered = GroupActuator([_make_run(60.0), other]).list_offered()
    assert set(offered.sm_mhz) == set(_make_run(60.0).list_offered().sm_mhz) & set(
        other.list_offered().sm_mhz
    )
    assert list(offered.sm_mhz) == sorted(offered.sm_mhz)


def test_log_keeps_one_mean_a_second() -> None:
    book = GovernorLog("GPU 0", False)
    at = np.arange(0.0, 3.0, 0.1)
    watts = np.where(at < 1, 100.0, 200.0)
    watts[3] = np.nan
    clock = np.full(30, np.nan)
    book.add_samples(
        SensorSamples(time_s=at, power_w=watts, sm_util=watts, memory_util=watts, clock_mhz=clock)
    )
    book.add_samples(SensorSamples(*np.zeros((5, 0))))
    assert [round(w) for _, w, _ in book.trace] == [100, 200, 200]
    assert all(np.isnan(mhz) for _, _, mhz in book.trace)


def test_json_has_no_nan() -> None:
    assert to_plain_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": Settings(sm_mhz=3)}) == {
        "a": None,
        "b": [None, 1.5],
        "c": {"sm_mhz": 3, "memory_mhz": None, "power_w": None},
    }


@pytest.mark.parametrize(
    "module",
    [
        "ekc.devices.clocks.lease",
        "ekc.cli.govern_output",
        "ekc.governor.governor",
        "ekc.governor.live.governor_process",
    ],
)
def test_modules_before_the_job_import_no_numpy(module: str) -> None:
    program = f"import sys, {module}; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


def test_steps_are_counted_across_processes(tmp_path: Path) -> None:
    counter = StepCounter(tmp_path / "steps")
    reader = StepReader(tmp_path / "steps")
    assert reader() is None
    for _ in range(3):
        with counter:
            pass
    with pytest.raises(KeyError), counter:
        raise KeyError
    assert reader() == 3.0
    with pytest.raises(InvalidInput, match="no file of steps"):
        StepReader(tmp_path / "nothing")


def test_every_simulated_kind_and_card_can_be_made() -> None:
    for kind in JOB_KINDS:
        for card in SIMULATED_CARDS:
            unit = make_simulated_unit(kind, card, 0, 1.0)
            assert "(simulated)" in unit.name
            assert unit.probe.is_running()
    for kind, card, minutes in (("no", "h200", 1.0), ("compute", "no", 1.0), ("compute", "h200", 0.0)):
        with pytest.raises(InvalidInput):
            make_simulated_unit(kind, card, 0, minutes)
