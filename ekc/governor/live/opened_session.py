"""Leases and control loops of a job on GPUs that were chosen, from `open` to `close`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.lease_file import GovernedElsewhereError, find_governor_pid
from ekc.devices.clocks.nvml_limits import NvmlLimitReader
from ekc.devices.clocks.open import choose_actuator
from ekc.devices.nvml.sensors import GpuSensors
from ekc.errors import ActuatorError, DriverTrouble
from ekc.governor.live.job_report import GovernorLog
from ekc.governor.live.loop_choice import make_loop
from ekc.governor.live.planned_clock import check_plan
from ekc.governor.live.probe import (
    JobProbeFactory,
    format_gpu_names,
    make_governed_units,
    make_watched_units,
)
from ekc.governor.live.session import LOOP_EXIT_TIMEOUT_S, GovernorSession, LoopFunction, SessionListener
from ekc.governor.protocols import Probe
from ekc.governor.request import GovernorRequest


class GovernorListener(SessionListener, Protocol):
    """Listener that also gets messages about GPUs, leases and permissions."""

    def on_note(self, line: str) -> None:
        """A message about leases or permissions, which is shown in any case."""

    def on_progress(self, line: str) -> None:
        """A message about the GPUs of the job, which may be hidden."""


class OpenedSession:
    """Leases and control loops on some GPUs; `close` works however far `open` came."""

    def __init__(
        self,
        request: GovernorRequest,
        listener: GovernorListener,
        make_probe: JobProbeFactory,
        is_running: Callable[[], bool],
        job_start_s: float,
        loop: LoopFunction | None = None,
    ) -> None:
        self._request, self._listener, self._loop = request, listener, loop
        self._make_job_probe, self._is_job_running = make_probe, is_running
        self._job_start_s = job_start_s
        """Monotonic time at which the job began."""
        self._is_over = threading.Event()
        self.keeper: LeaseKeeper | None = None
        self.session: GovernorSession | None = None

    def open(self, uuids: Sequence[str]) -> None:
        """Take leases and start the loops. Raises `EkcError`; `close` is due then too."""
        request = self._request
        _check_not_split(uuids)
        if request.plan is not None:
            check_plan(request.plan, uuids)
        advise = request.advise or not self._acquire_leases(uuids)
        if self.keeper is None:
            units = make_watched_units(uuids, self._make_probe, request.each)
        else:
            units = make_governed_units(self.keeper, self._make_probe, request.each)
        loop = self._loop or make_loop(request, advise, uuids, self._job_start_s, self._listener.on_note)
        self.session = GovernorSession(units, loop, self._listener)

    def finish(self) -> list[GovernorLog]:
        """End the loops; returns their logs."""
        self._is_over.set()
        return self.session.finish() if self.session is not None else []

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

    def _make_probe(self, gpu: str) -> Probe:
        return self._make_job_probe(gpu, self._is_running)

    def _is_running(self) -> bool:
        """Whether the job runs, and these GPUs are governed for it."""
        return not self._is_over.is_set() and self._is_job_running()

    def _acquire_leases(self, uuids: Sequence[str]) -> bool:
        """Lease the GPUs; False where `auto` finds no way to set clocks, so that only advice is possible."""
        request, listener = self._request, self._listener
        for gpu in uuids:  # Before the permission is tried, which sets the power cap to its present value.
            if (governor_pid := find_governor_pid(gpu)) is not None:
                raise GovernedElsewhereError(gpu, format_gpu_names(gpu), governor_pid)
        try:
            settables = [choose_actuator(request.actuator, gpu) for gpu in uuids]
        except DriverTrouble:
            raise
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
