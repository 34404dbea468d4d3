"""Runs a control loop for each GPU or group in a thread; its failures never affect the job."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ekc.errors import EkcError
from ekc.governor.event_records import Event, EventCallback
from ekc.governor.live.job_report import GovernorLog
from ekc.governor.protocols import Actuator, Probe, Settings
from ekc.governor.samples import SensorSamples


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


LOOP_EXIT_TIMEOUT_S = 5.0
"""Seconds within which a loop must notice that its job has ended."""
RETRY_S = 5.0
"""Seconds between two attempts to restore the previous settings."""

LoopFunction = Callable[[Probe, Actuator, EventCallback], object]
"""Governs one job until it ends: `govern` or `advise` with a policy, or a function of a test."""


@dataclass(frozen=True)
class GovernedUnit:
    """GPU or group that one loop governs, with its probe and actuator."""

    name: str
    probe: Probe
    actuator: Actuator


class SessionListener(Protocol):
    """Receives events of the loops; called from any thread."""

    def on_event(self, governor_log: GovernorLog, event: Event) -> None:
        """An event of a loop."""

    def on_samples(self, governor_log: GovernorLog) -> None:
        """The log has new samples."""

    def on_trouble(self, governor_log: GovernorLog, line: str) -> None:
        """Governing ended before the job."""


class GovernorSession:
    """Control loops in threads, from creation until `finish`."""

    def __init__(
        self, units: Sequence[GovernedUnit], run_loop: LoopFunction, listener: SessionListener
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
