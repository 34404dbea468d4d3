"""A session: the control loop that a request asks for, for each GPU or group in a thread.

The loop governs, only advises, or holds the clock of a plan. Its failures never affect the job.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.lease_file import GovernedElsewhereError, find_governor_pid
from ekc.devices.clocks.limits import NvmlLimitReader
from ekc.devices.clocks.open import choose_actuator
from ekc.devices.nvml.library import call_nvml
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import ActuatorError, DriverTrouble, EkcError
from ekc.governor.advise import advise
from ekc.governor.event_records import Applied, Ended, Event, EventCallback, Planned, Started
from ekc.governor.job_meter import PASSING_FAILURES, DriverRetries, JobEnded
from ekc.governor.live.gpus import format_gpu_names
from ekc.governor.live.group import GovernedUnit, make_units
from ekc.governor.live.job_report import GovernorLog
from ekc.governor.loop import govern
from ekc.governor.protocols import Actuator, NullActuator, Probe, Settings, is_board
from ekc.governor.request import GovernorRequest, PlannedClock, Policy
from ekc.governor.response_model import load_model
from ekc.governor.samples import SensorSamples
from ekc.governor.saved_choice import ChoiceFile, make_conditions

LoopFunction = Callable[[Probe, Actuator, EventCallback], object]
"""Governs one job until it ends: `govern` or `advise` with a policy, or a function of a test."""


def make_loop(
    request: GovernorRequest,
    only_advise: bool,
    gpus: Sequence[str],
    job_start_s: float,
    on_note: Callable[[str], None],
) -> LoopFunction:
    """The loop for GPUs named by UUID; `job_start_s`: monotonic time at which the job began. `on_note` gets a
    line where a saved choice is not used."""
    gpu_count = 1 if request.each else len(gpus)
    policy = request.policy.for_unit(gpu_count, time.monotonic() - job_start_s)

    def run_loop(probe: Probe, actuator: Actuator, on_event: EventCallback) -> None:
        if request.plan is not None:
            hold_planned_clock(probe, actuator, request.plan, on_event)
            return
        if only_advise:
            assert isinstance(actuator, NullActuator)
            advise(probe, actuator, policy, on_event)
            return
        model = None if request.model is None else load_model(request.model, gpu_count)
        if request.remember is None:
            govern(probe, actuator, policy, on_event, model=model)
        else:
            file = ChoiceFile(request.remember, read_conditions(gpus, request.policy), on_note)
            govern(probe, actuator, policy, on_event, saved=file.read(), save=file.write, model=model)

    return run_loop


def read_conditions(gpus: Sequence[str], policy: Policy) -> dict[str, Any]:
    """Conditions under which a choice for these GPUs is used again."""
    boards = [NvmlLimitReader(gpu) for gpu in gpus]
    driver = str(call_nvml("the driver's version", boards[0].library.nvmlSystemGetDriverVersion))
    models = ", ".join(sorted({board.product_name for board in boards}))
    return make_conditions(models, len(boards), driver, policy)


RECORD_S = 5.0
"""Seconds of sensor samples at a time."""


def check_plan(plan: PlannedClock, gpus: Sequence[str]) -> None:
    """Raise `ActuatorError` for a GPU, named by UUID, that is not the plan's, or that has no such clock."""
    for gpu in gpus:
        board = NvmlLimitReader(gpu)
        if not is_board(plan.device, board.product_name):
            raise ActuatorError(f"{board.name} is no {plan.device}, which the plan is for; tune for this GPU")
        clocks = board.list_offered().sm_mhz
        if not clocks:
            raise ActuatorError(
                f"{board.name} has no SM clock that can be limited, so no plan can be applied"
            )
        if plan.clock_mhz not in clocks:
            nearest = min(clocks, key=lambda mhz: abs(mhz - plan.clock_mhz))
            raise ActuatorError(
                f"{board.name} has no SM clock of {plan.clock_mhz} MHz, which the plan sets; it offers "
                f"{clocks[0]} to {clocks[-1]} MHz; nearest: {nearest}"
            )


def hold_planned_clock(probe: Probe, actuator: Actuator, plan: PlannedClock, on_event: EventCallback) -> None:
    """Set the clock of the plan and watch the job until it ends. Nothing is restored here: the owner of the
    actuator does that. Where the driver fails and may answer again, the clock is set again later. Raises what
    else probe and actuator raise."""
    start, joules, settings = probe.now(), probe.read_energy_j(), Settings(sm_mhz=plan.clock_mhz)
    is_simulated = probe.simulated or actuator.simulated
    on_event(Started(start, probe.label, actuator.label, is_simulated, "the clock of a plan"))
    on_event(Planned(probe.now(), settings, plan.slowdown, plan.saving))
    retries = DriverRetries(probe, actuator, on_event)
    with suppress(JobEnded):
        while probe.is_running():
            try:
                if actuator.settings() != settings:
                    actuator.apply(settings)
                    on_event(Applied(probe.now(), settings, "the clock of the plan"))
                probe.record(RECORD_S)
                retries.note_success()
            except PASSING_FAILURES as problem:
                retries.recover(problem)
    on_event(Ended(probe.now(), probe.now() - start, probe.read_energy_j() - joules))


class RecordingProbe:
    """A probe that also adds its samples to a log; `on_samples` is called after each recording."""

    def __init__(self, probe: Probe, log: GovernorLog, on_samples: Callable[[GovernorLog], None]) -> None:
        self._probe, self._log, self._on_samples = probe, log, on_samples
        self.label, self.simulated = probe.label, probe.simulated
        self.now, self.is_running = probe.now, probe.is_running
        self.read_energy_j, self.read_step_count = probe.read_energy_j, probe.read_step_count

    def record(self, seconds: float) -> SensorSamples:
        """Record with the probe and add the samples to the log."""
        samples = self._probe.record(seconds)
        self._log.add_samples(samples)
        self._on_samples(self._log)
        return samples

    def read_counters(self, seconds: float) -> dict[str, float]:
        """Read counters with the probe."""
        return self._probe.read_counters(seconds)


LOOP_EXIT_TIMEOUT_S = 5.0
"""Seconds within which a loop must notice that its job has ended."""
RETRY_S = 5.0
"""Seconds between two attempts to restore the previous settings."""


class GovernorListener(Protocol):
    """Receives events of the loops, and messages about GPUs, leases and permissions; called from any
    thread."""

    def on_event(self, governor_log: GovernorLog, event: Event) -> None:
        """An event of a loop."""

    def on_samples(self, governor_log: GovernorLog) -> None:
        """The log has new samples."""

    def on_trouble(self, governor_log: GovernorLog, line: str) -> None:
        """Governing ended before the job."""

    def on_note(self, line: str) -> None:
        """A message about leases or permissions, which is shown in any case."""

    def on_progress(self, line: str) -> None:
        """A message about the GPUs of the job, which may be hidden."""


class GovernorSession:
    """Control loops in threads, from creation until `finish`."""

    def __init__(
        self, units: Sequence[GovernedUnit], run_loop: LoopFunction, listener: GovernorListener
    ) -> None:
        self.logs = [GovernorLog(u.name, u.probe.simulated or u.actuator.simulated) for u in units]
        self._listener = listener
        self._threads = []
        for unit, log in zip(units, self.logs, strict=True):
            arguments, name = (unit, run_loop, log), f"ekc-{unit.name}"
            self._threads.append(
                threading.Thread(target=self._run_loop, args=arguments, name=name, daemon=True)
            )
        for thread in self._threads:
            thread.start()

    def finish(self) -> list[GovernorLog]:
        """Wait for the loops after the job has ended; one that hangs in a driver's call is left behind."""
        for thread, log in zip(self._threads, self.logs, strict=True):
            thread.join(LOOP_EXIT_TIMEOUT_S)
            if thread.is_alive():
                self._report_failure(log, f"the driver has not answered for {LOOP_EXIT_TIMEOUT_S:.0f} s")
        return self.logs

    def wait(self) -> list[GovernorLog]:
        """Wait until the loops end, as those of simulated jobs do."""
        for thread in self._threads:
            thread.join()
        return self.logs

    def _run_loop(self, unit: GovernedUnit, loop: LoopFunction, governor_log: GovernorLog) -> None:
        def record_event(event: Event) -> None:
            governor_log.events.append(event)
            self._listener.on_event(governor_log, event)

        try:
            probe = RecordingProbe(unit.probe, governor_log, self._listener.on_samples)
            loop(probe, unit.actuator, record_event)
        except EkcError as problem:
            self._restore_after_failure(unit, governor_log, str(problem))
        except Exception as problem:  # A bug of ekc must not affect the job.
            where = traceback.extract_tb(problem.__traceback__)[-1]
            line = f"a bug in ekc: {type(problem).__name__}: {problem} ({where.filename}:{where.lineno})"
            self._restore_after_failure(unit, governor_log, line)

    def _restore_after_failure(self, unit: GovernedUnit, governor_log: GovernorLog, line: str) -> None:
        """Restore the previous settings as soon as possible; the lease restores them again at the end."""
        if not unit.probe.is_running():
            return  # Failures while the job ends do not matter.
        line += "; the job goes on ungoverned, "
        reason = _restore_settings(unit.actuator)
        if reason is None:
            self._report_failure(governor_log, line + "at its previous settings")
            return
        detail = "" if reason in line else f": {reason}"
        self._report_failure(
            governor_log, f"{line}and what was set may stay until it ends; restoring is tried again{detail}"
        )
        while _wait_for_retry(unit.probe):
            if _restore_settings(unit.actuator) is None:
                self._listener.on_trouble(governor_log, "previous settings are back")
                return

    def _report_failure(self, governor_log: GovernorLog, line: str) -> None:
        governor_log.problem = line
        self._listener.on_trouble(governor_log, line)


def _restore_settings(actuator: Actuator) -> str | None:
    """Restore the previous settings; the reason where that failed, else None."""
    try:
        actuator.apply(Settings())
    except Exception as problem:
        return str(problem)
    return None


def _wait_for_retry(probe: Probe) -> bool:
    """Wait `RETRY_S`; False where the job has ended or the card is lost."""
    try:
        probe.record(RETRY_S)
    except Exception:
        return False
    return probe.is_running()


def acquire_leases(
    request: GovernorRequest, listener: GovernorListener, uuids: Sequence[str]
) -> LeaseKeeper | None:
    """Check GPUs, and lease them; None for advice only, also where `auto` finds no way to set clocks. Raises
    `EkcError`."""
    _check_not_split(uuids)
    if request.plan is not None:
        check_plan(request.plan, uuids)
    if request.model is not None:
        for board in map(NvmlLimitReader, uuids):
            request.model.check_board(board.name, board.product_name)
    if request.advise:
        return None
    for gpu in uuids:  # Before the permission is tried, which sets the power cap to its present value.
        if (governor_pid := find_governor_pid(gpu)) is not None:
            raise GovernedElsewhereError(gpu, format_gpu_names([gpu]), governor_pid)
    try:
        settables = [choose_actuator(request.actuator, gpu) for gpu in uuids]
    except DriverTrouble:
        raise
    except ActuatorError as problem:
        if request.actuator != "auto" or request.plan is not None:
            raise
        listener.on_note(f"may not set clocks here, so this is advice only: {problem}")
        return None
    return LeaseKeeper(settables, request.previous_settings, listener.on_note)


def open_session(
    request: GovernorRequest,
    listener: GovernorListener,
    keeper: LeaseKeeper | None,
    uuids: Sequence[str],
    make_probe: Callable[[str], Probe],
    job_start_s: float,
    loop: LoopFunction | None = None,
) -> GovernorSession:
    """Start the loops on leased GPUs, without leases for advice. `job_start_s`: see `make_loop`. Raises
    `EkcError`."""
    actuators: dict[str, Actuator]
    if keeper is None:
        actuators = {gpu: NullActuator(NvmlLimitReader(gpu).list_offered()) for gpu in uuids}
    else:
        actuators = {actuator.lease.reference.gpu: actuator for actuator in keeper.actuators}
    units = make_units(actuators, make_probe, request.each)
    loop = loop or make_loop(request, keeper is None, uuids, job_start_s, listener.on_note)
    return GovernorSession(units, loop, listener)


def end_leases(keeper: LeaseKeeper, listener: GovernorListener) -> None:
    """Restore the previous settings; the guard does it where the driver does not answer."""
    problems: list[str] = []
    closer = threading.Thread(target=lambda: problems.extend(keeper.close()), daemon=True)
    closer.start()
    closer.join(LOOP_EXIT_TIMEOUT_S)
    if closer.is_alive():
        problems.append("the driver does not answer; the guard tries on, after that: ekc govern --restore")
    for line in problems:
        listener.on_note(line)


def _check_not_split(gpus: Sequence[str]) -> None:
    """Raises `ActuatorError` for a GPU split by MIG: its clocks and energy are shared with other jobs."""
    for gpu in gpus:
        if GpuSensors(gpu).explain_sharing():
            raise ActuatorError(
                f"GPU {NvmlLimitReader(gpu).index} is split by MIG: its clocks and its energy are those of "
                "all parts; govern a whole GPU"
            )
