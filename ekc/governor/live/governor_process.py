"""A governor beside a real job: whatever becomes of the governor, the job runs as it would have.

What the user asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.nvml_limits import NvmlLimitReader
from ekc.devices.clocks.open import choose_actuator
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import ActuatorError, EkcError
from ekc.governor.events import EventCallback
from ekc.governor.live import gpus
from ekc.governor.live.job import GovernedJob
from ekc.governor.live.probe import ProbeFactory, make_governed_units, make_watched_units
from ekc.governor.live.report import GovernorLog
from ekc.governor.live.session import LOOP_EXIT_TIMEOUT_S, GovernorSession, LoopFunction, SessionListener
from ekc.governor.policy import GovernorRequest, Policy
from ekc.governor.protocols import Actuator, NullActuator, Probe


class GovernorListener(SessionListener, Protocol):
    """An audience that also hears of what is no loop's business."""

    def on_note(self, line: str) -> None:
        """Of leases and permissions."""
        ...


@dataclass(frozen=True)
class GovernorExit:
    """How it ended: the job's own exit status, and a book per loop."""

    status: int
    logs: list[GovernorLog]
    problem: str | None
    """Why nothing was governed."""
    core_share: float | None
    """Of one core, that sampling and control took, guard not included."""


def govern_job(
    job: GovernedJob,
    request: GovernorRequest,
    listener: GovernorListener,
    make_probe: ProbeFactory,
    loop: LoopFunction | None = None,
) -> GovernorExit:
    """Govern, or advise, until the job ends; previous settings are back when this returns.

    Raises nothing for what goes wrong with the GPU: that is one line for the audience. The job is waited for
    in this thread, which asks nothing of a driver until then.
    """
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
    if opener.is_alive():
        listener.on_note("the governor was not ready when the job had ended; nothing was set")
    share = opened_session.compute_core_share()
    books = opened_session.session.finish() if opened_session.session else []
    opened_session.close()
    return GovernorExit(status, books, opened_session.problem, share)


class _OpenedSession:
    """What has to be closed again, however far opening came."""

    keeper: LeaseKeeper | None = None
    session: GovernorSession | None = None
    problem: str | None = None

    def __init__(
        self,
        job: GovernedJob,
        request: GovernorRequest,
        listener: GovernorListener,
        make_probe: ProbeFactory,
        loop: LoopFunction | None,
    ) -> None:
        self._job = job
        self._request = request
        self._listener = listener
        self._make_probe = make_probe
        self._loop = loop
        self._start_s = self._start_core_s = 0.0

    def open(self) -> None:
        """Tells why nothing is governed, where that is so."""
        try:
            self._open_session()
        except EkcError as trouble:
            self.problem = str(trouble)
        except Exception as trouble:  # A bug of ours is no reason to touch the job.
            self.problem = f"a bug in ekc: {type(trouble).__name__}: {trouble}"
        if self.problem is not None and self._job.is_running():
            self._listener.on_note(f"{self.problem}; the job runs ungoverned")
            self._job.stop_waiting()

    def close(self) -> None:
        """Previous settings back; a driver that does not answer is left to the guard."""
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
        """Since the loops began."""
        if self.session is None:
            return None
        return (time.process_time() - self._start_core_s) / max(time.monotonic() - self._start_s, 1e-3)

    def _open_session(self) -> None:
        """Raises what finding the GPUs, their actuators and probes raises."""
        request = self._request
        found = list(request.gpus) or gpus.find_job_gpus(self._job, request.gpus_of or self._job.pid)
        if not self._job.is_running():
            return
        _check_not_split(found)
        advise = request.advise or not self._acquire_leases(found)
        if self.keeper is None:
            units = make_watched_units(found, self._make_probe, request.each)
        else:
            units = make_governed_units(self.keeper, self._make_probe, request.each)
        self._start_s, self._start_core_s = time.monotonic(), time.process_time()
        loop = self._loop or _make_loop(request.policy, advise)
        self.session = GovernorSession(units, loop, self._listener)

    def _acquire_leases(self, gpus: Sequence[str]) -> bool:
        """False where "auto" finds no way to set anything: advice is better than nothing."""
        request, audience = self._request, self._listener
        try:
            settables = [choose_actuator(request.actuator, gpu) for gpu in gpus]
        except ActuatorError as problem:
            if request.actuator != "auto":
                raise
            audience.on_note(f"may not set clocks here, so this is advice only: {problem}")
            return False
        self.keeper = LeaseKeeper(settables, request.previous_settings, audience.on_note)
        for actuator in self.keeper.actuators:
            if actuator.restored is not None:
                audience.on_note(f"an earlier governor was killed; {actuator.restored}")
        return True


def _check_not_split(gpus: Sequence[str]) -> None:
    """Raises `ActuatorError` for a GPU that is split: what is set and billed there is others' work too."""
    for gpu in gpus:
        if GpuSensors(gpu).explain_sharing():
            raise ActuatorError(
                f"GPU {NvmlLimitReader(gpu).index} is split by MIG: its clocks and its energy are those of "
                "all parts; govern a whole GPU"
            )


def _make_loop(policy: Policy, advise: bool) -> LoopFunction:
    """The heavy part is imported when it is needed."""

    def steer(probe: Probe, actuator: Actuator, hear: EventCallback) -> object:
        from ekc.governor.loop import govern

        return govern(probe, actuator, policy, hear)

    def watch(probe: Probe, actuator: Actuator, hear: EventCallback) -> None:
        from ekc.governor.advise import advise as advised

        assert isinstance(actuator, NullActuator)
        advised(probe, actuator, policy, hear)

    return watch if advise else steer
