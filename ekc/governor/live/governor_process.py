"""Governs a real job from a process beside it: a failure of the governor never affects the job.

The GPUs are found, and said, before NumPy and the control loop are imported, which takes longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ekc.devices.clocks.lease import LeaseKeeper
from ekc.devices.clocks.lease_file import GovernedElsewhereError
from ekc.errors import DriverTrouble, EkcError
from ekc.governor.live.governed_job import GovernedJob
from ekc.governor.live.gpus import BoardWatch, GpuChoice, find_job_gpus, find_seen_gpus
from ekc.governor.live.steps import StepReader
from ekc.governor.request import GovernorRequest

if TYPE_CHECKING:
    from ekc.governor.live.job_report import GovernorLog
    from ekc.governor.live.probe import JobProbeFactory
    from ekc.governor.live.session import GovernorListener, GovernorSession, LoopFunction
    from ekc.governor.protocols import Probe

WATCH_INTERVAL_S = 1.0
"""Seconds between two looks at the processes on the GPUs."""
RETRY_S, MAX_RETRY_S = 2.0, 300.0
"""Shortest and longest pause in seconds after a failure of the driver; it doubles."""
PAUSE_TIMEOUT_S = 2.0
"""Seconds to wait for the driver to restore settings before this process is stopped."""


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
    make_probe: JobProbeFactory,
    loop: LoopFunction | None = None,
) -> GovernorExit:
    """Govern, or advise, until the job ends, and restore the previous settings. Failures of the GPU raise
    nothing: the listener gets one line. This thread calls no driver until the job has ended."""
    governor = _JobGovernor(job, request, listener, make_probe, loop)
    job.pause = governor.pause
    try:
        thread = threading.Thread(target=governor.run, name="ekc-govern", daemon=True)
        thread.start()
        status = job.wait()
        governor.end()
        from ekc.governor.live.session import LOOP_EXIT_TIMEOUT_S

        thread.join(LOOP_EXIT_TIMEOUT_S)
        is_late = thread.is_alive()
        if is_late:
            listener.on_note("the governor was not ready when the job had ended; nothing was set")
        share = governor.compute_core_share()
        governor.close_session()
    finally:
        job.restore_signals()
    reason = "the driver did not answer in time" if is_late else governor.problem or governor.early_end
    logs, problem = governor.logs, governor.problem
    return GovernorExit(status, logs, problem, share, None if logs else reason)


def make_nvml_probe_factory(steps_file: Path | None, on_message: Callable[[str], None]) -> JobProbeFactory:
    """Factory of probes of real GPUs; `on_message` gets a line where an energy counter stops. Raises
    `InvalidInput` for a file without a count of steps."""
    read_step_count = StepReader(steps_file) if steps_file else lambda: None

    def make_probe(gpu: str, is_running: Callable[[], bool]) -> Probe:
        from ekc.governor.live.probe import NvmlProbe

        return NvmlProbe(gpu, is_running, read_step_count, on_message)

    return make_probe


class _JobGovernor:
    """Finds the GPUs of a job and governs them, in a thread; later others, where the first are refuted."""

    def __init__(
        self,
        job: GovernedJob,
        request: GovernorRequest,
        listener: GovernorListener,
        make_probe: JobProbeFactory,
        loop: LoopFunction | None,
    ) -> None:
        self._job, self._request, self._listener = job, request, listener
        self._make_probe, self._loop = make_probe, loop
        self._ended = threading.Event()
        self._keeper: LeaseKeeper | None = None
        self._session: GovernorSession | None = None
        self._is_over = threading.Event()
        """Set once the GPUs of the present session are governed no more."""
        self.logs: list[GovernorLog] = []
        self.problem: str | None = None
        self.early_end: str | None = None
        """Reason why there is no session although nothing failed: the job was too short."""
        self._start: tuple[float, float] | None = None
        """Time, and processor time, in seconds, when the first loops began."""
        self._job_start_s = time.monotonic()

    def run(self) -> None:
        """Govern until the job ends; the listener gets the reason where that fails."""
        try:
            self._govern_patiently()
        except EkcError as trouble:
            self._fail(str(trouble))
        except Exception as trouble:  # A bug of ekc must not affect the job.
            self._fail(f"a bug in ekc: {type(trouble).__name__}: {trouble}")

    def end(self) -> None:
        """End `run` soon."""
        self._ended.set()

    def close_session(self) -> None:
        """End the loops and restore the previous settings."""
        keeper, session = self._keeper, self._session
        self._keeper = self._session = None
        self._is_over.set()
        if session is not None:
            self.logs += session.finish()
        if keeper is not None:
            from ekc.governor.live.session import end_leases

            end_leases(keeper, self._listener)

    def compute_core_share(self) -> float | None:
        """Processor time since the loops began, as a share of one core; None where none began."""
        if self._start is None:
            return None
        start_s, start_core_s = self._start
        return (time.process_time() - start_core_s) / max(time.monotonic() - start_s, 1e-3)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Previous settings during a `with` block, in which this process is stopped. Another thread calls
        the driver: one that does not answer delays the stop by `PAUSE_TIMEOUT_S`, then the guard acts."""
        keeper = self._keeper
        if keeper is None:
            yield
            return
        is_restored, is_over = threading.Event(), threading.Event()
        threading.Thread(
            target=self._hold_previous_settings, args=(keeper, is_restored, is_over), daemon=True
        ).start()
        is_restored.wait(PAUSE_TIMEOUT_S)
        try:
            yield
        finally:
            is_over.set()

    def _hold_previous_settings(
        self, keeper: LeaseKeeper, is_restored: threading.Event, is_over: threading.Event
    ) -> None:
        with keeper.suspend():
            is_restored.set()
            is_over.wait()

    def _goes_on(self) -> bool:
        return self._job.is_running() and not self._ended.is_set()

    def _fail(self, problem: str) -> None:
        self.problem = problem
        if self._job.is_running():
            self._listener.on_note(f"{problem}; the job runs ungoverned")
            self._job.stop_waiting()

    def _govern_patiently(self) -> None:
        """Govern; begin again later where the driver fails before a control loop runs, which has its own
        retries. Raises `EkcError`."""
        pause_s = RETRY_S
        while True:
            try:
                return self._govern()
            except DriverTrouble as trouble:
                self.close_session()
                if pause_s > MAX_RETRY_S or not self._goes_on():
                    raise
                self.problem = str(trouble)
                self._listener.on_note(f"{trouble}; the job runs ungoverned, next try in {pause_s:.0f} s")
            self._ended.wait(pause_s)
            pause_s *= 2

    def _govern(self) -> None:
        """Raises the errors of finding the GPUs, their actuators and probes."""
        request, ancestor_pid = self._request, self._request.gpus_of or self._job.pid
        choice: GpuChoice | None = GpuChoice(request.gpus, "--gpu names them")
        if not request.gpus:
            choice = find_job_gpus(self._job, ancestor_pid, self._listener.on_progress)
        while choice is not None and self._goes_on():
            choice = self._govern_gpus(choice, ancestor_pid)
        if self._start is None and self.problem is None:
            seen = "the governor could begin" if choice else "it was seen on a GPU"
            self.early_end = f"the job was too short: it ended before {seen}"

    def _govern_gpus(self, choice: GpuChoice, ancestor_pid: int) -> GpuChoice | None:
        """Govern GPUs until the job ends, which returns None, or the choice is refuted: the next one."""
        watch = BoardWatch(choice, ancestor_pid, self._listener.on_note)
        while self._goes_on():
            refuted = watch.look()
            if refuted is not None:
                self.close_session()
                self._listener.on_note(refuted.reason)
                return refuted.choice or find_seen_gpus(self._job, ancestor_pid, self._listener.on_progress)
            if self._session is None:
                self._open(choice.uuids)
            self._ended.wait(WATCH_INTERVAL_S)
        return None if self._start is not None else choice

    def _open(self, uuids: Sequence[str]) -> None:
        """Take leases and start the loops, or say which process has them. Raises `EkcError`; `close_session`
        is due then too."""
        from ekc.governor.live.session import acquire_leases, open_session

        request, listener = self._request, self._listener
        is_over = self._is_over = threading.Event()

        def make_probe(gpu: str) -> Probe:
            return self._make_probe(gpu, lambda: not is_over.is_set() and self._job.is_running())

        try:
            self._keeper = keeper = acquire_leases(request, listener, uuids)
            for actuator in keeper.actuators if keeper else ():
                if actuator.restored is not None:
                    listener.on_note(f"an earlier governor was killed; {actuator.restored}")
            self._session = open_session(
                request, listener, keeper, uuids, make_probe, self._job_start_s, self._loop
            )
        except GovernedElsewhereError as problem:
            if self.problem != str(problem):
                self._listener.on_note(f"{problem}; the job runs ungoverned until that process ends")
            self.problem = str(problem)
            return
        self.problem = None
        if self._start is None:
            self._start = time.monotonic(), time.process_time()
