"""Holds the leases of a governor: starts the guard, beats for it, and puts everything back at the end."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from ekc.devices.lease.leased import LeasedActuator
from ekc.devices.lease.record import GUARD_READY
from ekc.devices.limits.settable import LimitSetter, Settings
from ekc.errors import ActuatorError, EkcError
from ekc.forks import detach_in_children, hold_forks

HEARTBEAT_INTERVAL_S = 0.5
"""Between two signs of life; a guard waits for several times as long."""
GUARD_START_TIMEOUT_S = 20.0
"""A guard that has not opened its actuators by then never will: the driver does not answer."""


class LeaseKeeper:
    """Leases for all GPUs of one governor, from creation until `close` or the end of the `with` block.

    Raises `ActuatorError` where a GPU has a governor already or the guard cannot be started; nothing has
    been set then. `tell` gets one line for what happens later on.
    """

    def __init__(
        self,
        limit_setters: Sequence[LimitSetter],
        previous_settings: Settings | None = None,
        on_message: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._on_message = on_message
        self._closed = threading.Event()
        self._owner_pid = os.getpid()
        self._lease_lock = threading.RLock()
        """Loop and heart both renew leases: while one does, the guard of the other is not there."""
        self._needs_reapply = False
        """Whether leases ended, and what had been set under them is not in force again."""
        self.actuators: list[LeasedActuator] = []
        try:
            # A child that is forked half way would hold locks and a pipe of which it does not know.
            with hold_forks():
                for settable in limit_setters:
                    self.actuators.append(
                        LeasedActuator(settable, previous_settings or Settings(), self._renew_leases)
                    )
                self._guard_process = self._start_guard()
                detach_in_children(self)
        except BaseException:
            self._end_leases()
            raise
        self._heartbeat_thread = threading.Thread(target=self._run_heartbeat, name="ekc-lease", daemon=True)
        self._heartbeat_thread.start()

    @property
    def guard_pid(self) -> int:
        """Process id of the guard."""
        return self._guard_process.pid

    def close(self) -> list[str]:
        """Put everything back; why that failed, a line per GPU where it did. A second call does nothing, nor
        one in a process that was forked meanwhile."""
        if self._closed.is_set() or os.getpid() != self._owner_pid:
            return []
        self._closed.set()
        self._heartbeat_thread.join()
        problems = self._end_leases()
        self._dismiss_guard(
            wait=not problems
        )  # A guard with something left to put back goes on trying alone.
        return problems

    def detach(self) -> None:
        """Leave the lease to the process that we were forked from; no lock is safe to take here. With its
        lock and its pipe open here it would outlive that process."""
        assert self._guard_process.stdin is not None
        self._guard_process.stdin.close()
        for actuator in self.actuators:
            actuator.detach()

    def __enter__(self) -> LeaseKeeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in self.close():
            self._report(line)

    def _report(self, line: str) -> None:
        """Whoever listens may raise (`warnings.warn` where warnings are errors): the lease goes on."""
        with contextlib.suppress(Exception):
            self._on_message(line)

    def _end_leases(self) -> list[str]:
        problems = []
        for actuator in self.actuators:
            try:
                actuator.end()
            except EkcError as problem:
                problems.append(
                    f"{problem}; its guard tries on for a minute, after that: ekc govern --restore"
                )
        return problems

    def _start_guard(self) -> subprocess.Popen[bytes]:
        """Of its own session, so that what a terminal sends to us does not reach it; back when it watches."""
        leases = [word for x in self.actuators for word in (x.lease.reference.gpu, x.lease.id)]
        try:
            guard = subprocess.Popen(
                [sys.executable, "-m", "ekc.devices.lease", *leases],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,  # No lock of a buffer, which another thread may hold while somebody forks.
                start_new_session=True,
            )
        except OSError as problem:
            reason = problem.strerror or type(problem).__name__
            raise ActuatorError(
                f"the guard process did not start ({reason}), so nothing may be set"
            ) from None
        assert guard.stdin is not None
        assert guard.stdout is not None
        with guard.stdout:
            answers = select.select([guard.stdout], [], [], GUARD_START_TIMEOUT_S)[0]
            if not answers or guard.stdout.readline() != GUARD_READY:
                guard.kill()
                raise ActuatorError("the guard process did not start, so nothing may be set")
        os.set_blocking(guard.stdin.fileno(), False)
        return guard

    def _run_heartbeat(self) -> None:
        told = None
        while not self._closed.wait(HEARTBEAT_INTERVAL_S):
            try:
                self._send_heartbeat()
                told = None
            except Exception as problem:  # Whatever it is: without a heart the guard takes us for dead.
                if str(problem) != told:
                    told = str(problem)
                    self._report(f"{told}; it is tried again until it is done")

    def _send_heartbeat(self) -> None:
        with self._lease_lock:
            if not self._has_all_leases():
                self._retake_leases()
            elif self._guard_process.poll() is not None:
                self._restart_guard()
                self._report("the guard was gone; a new one is there")
            self._signal_guard()
            for actuator in self.actuators:
                actuator.close_queries()
            self._reapply_settings()

    def _signal_guard(self) -> None:
        """A sign of it for the guard."""
        assert self._guard_process.stdin is not None
        try:
            os.write(self._guard_process.stdin.fileno(), b".")
        except (BlockingIOError, BrokenPipeError):
            self._guard_process.kill()  # It has not read for hours, or died just now; the next beat starts another.

    def _has_all_leases(self) -> bool:
        return all(x.is_active() for x in self.actuators)

    def _renew_leases(self) -> None:
        """For the loop, which is about to set something."""
        with self._lease_lock:
            if not self._has_all_leases():  # Else the heart was faster.
                self._retake_leases()
            self._reapply_settings()

    def _retake_leases(self) -> None:
        """New leases, and a guard for them; what was set under the old ones is owed from here on."""
        self._needs_reapply = True
        for actuator in self.actuators:
            actuator.retake()
        self._restart_guard()

    def _reapply_settings(self) -> None:
        """What is owed, until all of it was done: leases that are held again do not tell that it was not."""
        if not self._needs_reapply:
            return
        for actuator in self.actuators:
            actuator.reapply()
        self._needs_reapply = False
        self._report("the governor was stopped for a while and its guard put settings back; set again")

    def _restart_guard(self) -> None:
        self._dismiss_guard()
        with hold_forks():
            self._guard_process = self._start_guard()

    def _dismiss_guard(self, wait: bool = True) -> None:
        """A guard whose leases are over leaves when its pipe closes."""
        assert self._guard_process.stdin is not None
        self._guard_process.stdin.close()
        if wait:
            self._guard_process.wait()
