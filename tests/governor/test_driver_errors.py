"""Errors of the driver: those that may pass cost a pause, and not the governing of the job."""

from __future__ import annotations

import time

import pynvml
import pytest

from ekc.devices.clocks.limits import NvmlLimits
from ekc.devices.clocks.open import choose_actuator
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import ActuatorError, DriverTrouble, EkcError, GpuUnusable, RecordError
from ekc.governor.advise import Advised, advise
from ekc.governor.event_records import Applied, Chosen, Ended, Failed
from ekc.governor.job_meter import MAX_FAILURES
from ekc.governor.live.group import GroupActuator
from ekc.governor.live.session import hold_planned_clock
from ekc.governor.loop import govern
from ekc.governor.protocols import NullActuator, Settings
from ekc.governor.request import PlannedClock, Policy
from ekc.governor.samples import SensorSamples
from ekc.governor.simulation.simulated_run import SimulatedRun
from tests.governor.helpers import end_job, make_iterations, make_job, python_command, start_govern
from tests.scripted.nvml.boards import ScriptedBoards


class FailingRun(SimulatedRun):
    """A run whose driver fails from and until some times, when it sets limits or when it reads."""

    failing_s: tuple[float, float] = (0.0, 0.0)
    error: EkcError = DriverTrouble("Timeout")
    fails_to_read = False
    takes_effect = False

    def _fail(self) -> None:
        if self.failing_s[0] <= self.now() < self.failing_s[1]:
            raise self.error

    def apply(self, settings: Settings) -> None:
        if self.takes_effect:
            super().apply(settings)
        if not self.fails_to_read:
            self._fail()
        super().apply(settings)

    def record(self, seconds: float) -> SensorSamples:
        samples = super().record(seconds)
        if self.fails_to_read:
            self._fail()
        return samples


def make_run(seconds: float = 600.0) -> FailingRun:
    return FailingRun(make_job([make_iterations(seconds)]))


@pytest.mark.parametrize(
    ("begin_s", "fails_to_read", "error"),
    [
        (0.0, True, DriverTrouble("Timeout")),
        (25.0, False, DriverTrouble("Timeout")),
        (60.0, True, DriverTrouble("Timeout")),
        (60.0, False, RecordError("no space left")),
        (330.0, True, DriverTrouble("Timeout")),
    ],
)
def test_job_is_governed_again_after_a_failure(begin_s: float, fails_to_read: bool, error: EkcError) -> None:
    run = make_run()
    run.failing_s, run.fails_to_read, run.error = (begin_s, begin_s + 45.0), fails_to_read, error
    events = []
    govern(run, run, on_event=events.append)
    failures = [e for e in events if isinstance(e, Failed)]
    assert failures
    assert all(str(error) in e.format_line() for e in failures)
    last = events.index(failures[-1])
    chosen = [e for e in events if isinstance(e, Chosen)]
    assert chosen[-1].settings.sm_mhz is not None
    again = [e for e in events[last:] if isinstance(e, Applied) and e.settings == chosen[-1].settings]
    assert again[0].at_s < failures[-1].at_s + failures[-1].wait_s + 300.0
    assert isinstance(events[-1], Ended)


def test_previous_settings_are_in_force_while_the_driver_fails_to_read() -> None:
    run = make_run()
    run.failing_s, run.fails_to_read = (300.0, 360.0), True
    in_force = []
    govern(run, run, on_event=lambda e: in_force.append((run.settings(), e)))
    failures = [(settings, e) for settings, e in in_force if isinstance(e, Failed)]
    assert all(settings == Settings() and e.is_restored for settings, e in failures)
    # 5, 10, 20 s and so on, or three iterations of the job where these are longer.
    pauses = [e.wait_s for _, e in failures]
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(max(5.0, 3 * 1.5), rel=0.2)


def test_setting_that_fails_to_the_end_is_given_up() -> None:
    run = make_run(3000.0)
    run.failing_s = (30.0, 1e9)
    events = []
    with pytest.raises(DriverTrouble, match="Timeout"):
        govern(run, run, on_event=events.append)
    failures = [e for e in events if isinstance(e, Failed)]
    assert len(failures) == MAX_FAILURES
    assert not failures[0].is_restored
    assert "what was set may stay" in failures[0].format_line()


@pytest.mark.parametrize("error", [GpuUnusable("GPU is lost"), ActuatorError("Not Supported")])
def test_error_that_lasts_ends_governing_at_once(error: EkcError) -> None:
    run = make_run()
    run.failing_s, run.error = (30.0, 1e9), error
    events = []
    with pytest.raises(type(error)):
        govern(run, run, on_event=events.append)
    assert not [e for e in events if isinstance(e, Failed)]


def test_job_that_ends_while_the_driver_fails_is_accounted() -> None:
    run = make_run(450.0)
    run.failing_s = (400.0, 1e9)
    run.fails_to_read = True
    events = []
    result = govern(run, run, on_event=events.append)
    assert isinstance(events[-1], Ended)
    assert result.joules > 0


def test_clock_of_a_plan_is_set_after_a_failure() -> None:
    run = make_run(300.0)
    run.failing_s = (0.0, 40.0)
    events = []
    hold_planned_clock(run, run, PlannedClock("h200", 1200, 0.01, 0.1), events.append)
    (applied,) = [e for e in events if isinstance(e, Applied)]
    assert (applied.settings.sm_mhz, run.settings().sm_mhz) == (1200, 1200)
    assert isinstance(events[-1], Ended)


def test_advice_is_given_after_a_failure() -> None:
    run = make_run(400.0)
    run.failing_s, run.fails_to_read = (10.0, 80.0), True
    events = []
    advise(run, NullActuator(run.list_offered()), Policy(), events.append)
    assert [e for e in events if isinstance(e, Failed)]
    assert [e for e in events if isinstance(e, Advised)]


def test_lasting_error_of_one_gpu_counts_for_its_group() -> None:
    runs = [make_run(), make_run()]
    for run, error in zip(runs, (DriverTrouble("Timeout"), GpuUnusable("lost")), strict=True):
        run.failing_s, run.error = (0.0, 1e9), error
    with pytest.raises(GpuUnusable):
        GroupActuator(runs).apply(Settings(sm_mhz=1200))


def fail_calls(boards: ScriptedBoards, name: str, seconds: float = 1e9, **script: object) -> None:
    """Let calls fail with an NVML error for some seconds, by default all of them."""
    code, now = getattr(pynvml, f"NVML_ERROR_{name}"), time.time()
    usual = {"share": 1.0, "only_set": False, "takes_effect": False, "from": now, "until": now + seconds}
    boards.update_script(trouble=usual | {"code": code} | script)


@pytest.mark.parametrize("name", ["TIMEOUT", "UNKNOWN", "IN_USE", "NO_DATA"])
def test_short_error_of_nvml_is_not_seen(here: ScriptedBoards, name: str) -> None:
    """Nor taken for a board without MIG, instantaneous power or that UUID."""
    actuator = NvmlLimits(here.get_uuid())
    fail_calls(here, name, 0.15)
    actuator.set_limit("sm_mhz", 1200)
    assert here.read_limits()[0] == [300, 1200]
    fail_calls(here, name, 0.15)
    assert GpuSensors(here.get_uuid()).name == "GPU 0 (Scripted GPU)"


def test_kinds_of_errors_are_told_apart(here: ScriptedBoards) -> None:
    actuator = NvmlLimits(here.get_uuid())
    for name, kind in (
        ("TIMEOUT", DriverTrouble),
        ("NO_PERMISSION", GpuUnusable),
        ("GPU_IS_LOST", GpuUnusable),
    ):
        fail_calls(here, name, only_set=True)
        with pytest.raises(kind):
            actuator.set_limit("sm_mhz", 1200)
    fail_calls(here, "NOT_SUPPORTED", only_set=True)
    with pytest.raises(ActuatorError) as problem:
        actuator.set_limit("sm_mhz", 1200)
    assert type(problem.value) is ActuatorError


def test_timeout_of_the_permission_check_is_no_missing_permission(here: ScriptedBoards) -> None:
    """It once made the whole job one of advice only."""
    fail_calls(here, "TIMEOUT", only_set=True)
    with pytest.raises(DriverTrouble):
        choose_actuator("auto", here.get_uuid())
    fail_calls(here, "NO_PERMISSION", only_set=True)
    with pytest.raises(ActuatorError) as problem:
        choose_actuator("auto", here.get_uuid())
    assert not isinstance(problem.value, DriverTrouble)


def test_governor_begins_once_the_driver_answers(one: ScriptedBoards) -> None:
    fail_calls(one, "UNKNOWN", 3.0)
    process = start_govern(one, *python_command("import time; time.sleep(60)"))
    events = one.folder / "events"
    assert one.wait_for(lambda _: events.exists() and '"Started"' in events.read_text(), 50) < 50
    status, _, err = end_job(process)
    assert status == 143
    assert "(Unknown Error); the job runs ungoverned, next try in 2 s" in err
    assert "not to the end" not in err
    assert one.is_restored()
