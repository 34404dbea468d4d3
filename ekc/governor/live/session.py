"""Runs one control loop per GPU, or per group, beside the job, and keeps our troubles away from it.

A probe that writes what it samples into a book too.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ekc.errors import EkcError
from ekc.governor.events import Event, EventCallback
from ekc.governor.live.report import GovernorLog
from ekc.governor.protocols import Actuator, Probe, Settings
from ekc.governor.samples import SensorSamples


class RecordingProbe:
    """The probe itself, but for `record`; `fresh` is called whenever the book has new samples."""

    def __init__(
        self, probe: Probe, governor_log: GovernorLog, on_samples: Callable[[GovernorLog], None]
    ) -> None:
        self._probe = probe
        self._governor_log = governor_log
        self._on_samples = on_samples
        self.label = probe.label
        self.simulated = probe.simulated
        self.now = probe.now
        self.read_energy_j = probe.read_energy_j
        self.is_running = probe.is_running
        self.read_step_count = probe.read_step_count
        self.read_counters = probe.read_counters

    def record(self, seconds: float) -> SensorSamples:
        """As the probe does."""
        samples = self._probe.record(seconds)
        self._governor_log.add_samples(samples)
        self._on_samples(self._governor_log)
        return samples


LOOP_EXIT_TIMEOUT_S = 5.0
"""How long a loop may take to notice that its job has ended."""
RETRY_S = 5.0
"""Between two tries to go back."""

LoopFunction = Callable[[Probe, Actuator, EventCallback], object]
"""Steers one job until it ends: `govern` or `advise` with a policy, or a test's own."""


@dataclass(frozen=True)
class GovernedUnit:
    """What one loop governs: a GPU, or several alike."""

    name: str
    probe: Probe
    actuator: Actuator


class SessionListener(Protocol):
    """Who hears what happens; called from any thread."""

    def on_event(self, governor_log: GovernorLog, event: Event) -> None:
        """The loop told something."""
        ...

    def on_samples(self, governor_log: GovernorLog) -> None:
        """There are new samples."""
        ...

    def on_trouble(self, governor_log: GovernorLog, line: str) -> None:
        """Governing ended before the job did."""
        ...


class GovernorSession:
    """Loops in threads of their own, from creation until `finish`."""

    def __init__(
        self, units: Sequence[GovernedUnit], run_loop: LoopFunction, listener: SessionListener
    ) -> None:
        self.logs = [GovernorLog(u.name, u.probe.simulated or u.actuator.simulated) for u in units]
        self._listener = listener
        self._threads = [
            threading.Thread(
                target=self._run_loop, args=(unit, run_loop, book), name=f"ekc-{unit.name}", daemon=True
            )
            for unit, book in zip(units, self.logs, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def finish(self) -> list[GovernorLog]:
        """Once the job has ended: wait for the loops; one that hangs in a driver's call is left behind."""
        for thread, book in zip(self._threads, self.logs, strict=True):
            thread.join(LOOP_EXIT_TIMEOUT_S)
            if thread.is_alive():
                self._report_failure(book, f"the driver has not answered for {LOOP_EXIT_TIMEOUT_S:.0f} s")
        return self.logs

    def wait(self) -> list[GovernorLog]:
        """Until the loops end by themselves, as those of simulated jobs do."""
        for thread in self._threads:
            thread.join()
        return self.logs

    def _run_loop(self, unit: GovernedUnit, loop: LoopFunction, governor_log: GovernorLog) -> None:
        def hear(event: Event) -> None:
            governor_log.events.append(event)
            self._listener.on_event(governor_log, event)

        try:
            loop(RecordingProbe(unit.probe, governor_log, self._listener.on_samples), unit.actuator, hear)
        except EkcError as problem:
            self._restore_after_failure(unit, governor_log, str(problem))
        except Exception as problem:  # A bug of ours is no reason to touch the job.
            where = traceback.extract_tb(problem.__traceback__)[-1]
            line = f"a bug in ekc: {type(problem).__name__}: {problem} ({where.filename}:{where.lineno})"
            self._restore_after_failure(unit, governor_log, line)

    def _restore_after_failure(self, unit: GovernedUnit, governor_log: GovernorLog, line: str) -> None:
        """Previous settings at once, or as soon as may be; the lease puts them back once more at the end."""
        if not unit.probe.is_running():
            return  # What fails while the job is ending is of no interest any more.
        line += "; the job goes on ungoverned, "
        why = _restore_settings(unit.actuator)
        if why is None:
            self._report_failure(governor_log, line + "at its previous settings")
            return
        again = "" if why in line else f": {why}"
        self._report_failure(
            governor_log, f"{line}and what was set may stay until it ends; it is tried to go back{again}"
        )
        while _wait_for_retry(unit.probe):
            if _restore_settings(unit.actuator) is None:
                self._listener.on_trouble(governor_log, "previous settings are back")
                return

    def _report_failure(self, governor_log: GovernorLog, line: str) -> None:
        governor_log.problem = line
        self._listener.on_trouble(governor_log, line)


def _restore_settings(actuator: Actuator) -> str | None:
    """To the previous settings; why that failed, whatever it was."""
    try:
        actuator.apply(Settings())
    except Exception as problem:
        return str(problem)
    return None


def _wait_for_retry(probe: Probe) -> bool:
    """Let some time pass; False where the job has ended, or the card is gone."""
    try:
        probe.record(RETRY_S)
    except Exception:
        return False
    return probe.is_running()
