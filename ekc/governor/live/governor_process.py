"""Governs a real job from a process beside it: a failure of the governor never affects the job."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.nvml_limits import NvmlLimitReader
from ekc.devices.clocks.open import choose_actuator
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import ActuatorError, EkcError
from ekc.governor.live import gpus
from ekc.governor.live.governed_job import GovernedJob
from ekc.governor.live.job_report import GovernorLog
from ekc.governor.live.loop_choice import make_loop
from ekc.governor.live.planned_clock import check_plan
from ekc.governor.live.probe import ProbeFactory, make_governed_units, make_watched_units
from ekc.governor.live.session import LOOP_EXIT_TIMEOUT_S, GovernorSession, LoopFunction, SessionListener
from ekc.governor.policy import GovernorRequest


class GovernorListener(SessionListener, Protocol):
    """Listener that also gets messages about leases and permissions."""

    def on_note(self, line: str) -> None:
        """A message about leases or permissions."""


@dataclass(frozen=True)
class GovernorExit:
    """Result of a governed job."""

    status: int
    """Exit status of the job."""
    logs: list[GovernorLog]
    """One log for each control loop."""
    problem: str | None
    """Reason why the job was not governed; None where it was."""
    core_share: float | None
    """Share of one core that sampling and control took, guard not included."""
    absence: str | None = None
    """Reason why nothing was measured; None where something was."""


def govern_job(
    job: GovernedJob,
    request: GovernorRequest,
    listener: GovernorListener,
    make_probe: ProbeFactory,
    loop: LoopFunction | None = None,
) -> GovernorExit:
    """Govern, or advise, until the job ends, and restore the previous settings. Failures of the GPU raise
    nothing: the listener gets one line. This thread calls no driver until the job has ended."""
    opened = _OpenedSession(job, request, listener, make_probe, loop)
    try:
        return _wait_for_job(job, opened, listener)
    finally:
        job.restore_signals()


def _wait_for_job(
    job: GovernedJob, opened_session: _OpenedSession, listener: GovernorListener
) -> GovernorExit:
    opener = threading.Thread(target=opened_session.open, name="ekc-open", daemon=True)
    opener.start()
    status = job.wait()
    opener.join(LOOP_EXIT_TIMEOUT_S)
    is_late = opener.is_alive()
    if is_late:
        listener.on_note("the governor was not ready when the job had ended; nothing was set")
    share = opened_session.compute_core_share()
    logs = opened_session.session.finish() if opened_session.session else []
    opened_session.close()
    problem, early_end = opened_session.problem, opened_session.early_end
    absence = None if logs else "the driver did not answer in time" if is_late else problem or early_end
    return GovernorExit(status, logs, problem, share, absence)


@dataclass
class _OpenedSession:
    """Leases and session of a governed job; `close` works however far `open` came."""

    _job: GovernedJob
    _request: GovernorRequest
    _listener: GovernorListener
    _make_probe: ProbeFactory
    _loop: LoopFunction | None
    keeper: LeaseKeeper | None = None
    session: GovernorSession | None = None
    problem: str | None = None
    early_end: str | None = None
    """Reason why there is no session although nothing failed: the job was too short."""
    _created_s: float = field(default_factory=time.monotonic)
    _start_s: float = 0.0
    _start_core_s: float = 0.0

    def open(self) -> None:
        """Find the GPUs, take leases and start the loops; the listener gets the reason where that fails."""
        try:
            self._open_session()
        except EkcError as trouble:
            self.problem = str(trouble)
        except Exception as trouble:  # A bug of ekc must not affect the job.
            self.problem = f"a bug in ekc: {type(trouble).__name__}: {trouble}"
        if self.problem is not None and self._job.is_running():
            self._listener.on_note(f"{self.problem}; the job runs ungoverned")
            self._job.stop_waiting()

    def close(self) -> None:
        """Restore the previous settings; the guard does it where the driver does not answer."""
        keeper = self.keeper
        if keeper is None:
            return
        problems: list[str] = []
        closer = threading.Thread(target=lambda: problems.extend(keeper.close()), daemon=True)
        closer.start()
        closer.join(LOOP_EXIT_TIMEOUT_S)
        if closer.is_alive():
            problems.append(
                "the driver does not answer; the guard tries on, after that: ekc govern --restore"
            )
        for line in problems:
            self._listener.on_note(line)

    def compute_core_share(self) -> float | None:
        """Processor time since the loops began, as a share of one core."""
        if self.session is None:
            return None
        return (time.process_time() - self._start_core_s) / max(time.monotonic() - self._start_s, 1e-3)

    def _open_session(self) -> None:
        """Raises the errors of finding the GPUs, their actuators and probes."""
        request = self._request
        found = list(request.gpus) or gpus.find_job_gpus(self._job, request.gpus_of or self._job.pid)
        if not self._job.is_running():
            seen = "the governor could begin" if found else "it was seen on a GPU"
            self.early_end = f"the job was too short: it ended before {seen}"
            return
        _check_not_split(found)
        if request.plan is not None:
            check_plan(request.plan, found)
        advise = request.advise or not self._acquire_leases(found)
        if self.keeper is None:
            units = make_watched_units(found, self._make_probe, request.each)
        else:
            units = make_governed_units(self.keeper, self._make_probe, request.each)
        self._start_s, self._start_core_s = time.monotonic(), time.process_time()
        loop = self._loop or make_loop(request, advise, found, self._created_s, self._listener.on_note)
        self.session = GovernorSession(units, loop, self._listener)

    def _acquire_leases(self, gpus: Sequence[str]) -> bool:
        """Lease the GPUs; False where `auto` finds no way to set clocks, so that only advice is possible."""
        request, listener = self._request, self._listener
        try:
            settables = [choose_actuator(request.actuator, gpu) for gpu in gpus]
        except ActuatorError as problem:
            if request.actuator != "auto" or request.plan is not None:
                raise
            listener.on_note(f"may not set clocks here, so this is advice only: {problem}")
            return False
        self.keeper = LeaseKeeper(settables, request.previous_settings, listener.on_note)
        for actuator in self.keeper.actuators:
            if actuator.restored is not None:
                listener.on_note(f"an earlier governor was killed; {actuator.restored}")
        return True


def _check_not_split(gpus: Sequence[str]) -> None:
    """Raises `ActuatorError` for a GPU split by MIG: its clocks and energy are shared with other jobs."""
    for gpu in gpus:
        if GpuSensors(gpu).explain_sharing():
            raise ActuatorError(
                f"GPU {NvmlLimitReader(gpu).index} is split by MIG: its clocks and its energy are those of "
                "all parts; govern a whole GPU"
            )
