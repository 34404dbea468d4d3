"""Leases: previous settings of a GPU come back, whatever ends the process that set others.

`LeaseKeeper` writes a lease file per GPU before anything is set, starts a guard process that watches this
process, sends the guard a heartbeat, and puts everything back at the end. Where this process and the guard
both die, the lease file stays, and `restore_all` (`ekc govern --restore`) or the next governor restores the
settings in it. A `LeasedActuator` is the actuator for the control loop: each setting passes the lease first.
"Governor" is any process with a lease, also a tuning run.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from ekc.devices.clocks.daemon.actuator import DaemonActuator, lease_from_daemon
from ekc.devices.clocks.daemon.client import DaemonLimits
from ekc.devices.clocks.lease_file import GUARD_READY
from ekc.devices.clocks.lease_registry import register_lease_folder
from ekc.devices.clocks.leased_actuator import LeasedActuator
from ekc.devices.clocks.limit_watch import INTERVAL_S as WATCH_INTERVAL_S
from ekc.devices.clocks.limits import LimitSetter, Settings
from ekc.devices.clocks.restore import restore_all
from ekc.errors import ActuatorError, DriverTrouble, EkcError, RecordError
from ekc.forks import detach_in_children, hold_forks

HEARTBEAT_INTERVAL_S = 0.5
"""Seconds between two heartbeats; the guard waits for several times as long."""
LATE_HEARTBEAT_S = 2.0
"""Seconds between two heartbeats after which the guard may soon restore."""
GUARD_ACTION_S = 5.0
"""Seconds in which a guard that has decided to restore does so and ends the leases."""
GUARD_START_TIMEOUT_S = 20.0
"""Seconds for a guard to open its actuators; after that the driver counts as hung."""


class LeaseKeeper:
    """Leases for all GPUs of one governor, from creation until `close` or the end of the `with` block.

    Raises `ActuatorError` where a GPU has a governor already or the guard cannot be started; nothing has been
    set then. `on_message` gets one line for each later event.
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
        """Serialises the control loop and the heartbeat, which both renew leases and replace the guard."""
        self._signal_s = time.monotonic()
        """Time of the last heartbeat."""
        self._late_s = -math.inf
        """Time of the last heartbeat that came late."""
        self._needs_reapply = False
        """Whether leases ended, and settings made under them are not in force again."""
        self.actuators: list[LeasedActuator | DaemonActuator] = []
        self._guard_process: subprocess.Popen[bytes] | None = None
        """None where a daemon keeps all leases, with guards of its own."""
        before = previous_settings or Settings()
        try:
            # A child that is forked in between would hold locks and a pipe unknowingly.
            with hold_forks():
                remote = [x for x in limit_setters if isinstance(x, DaemonLimits)]
                self.actuators += lease_from_daemon(remote, before, self._renew_leases, self._report)
                local = [x for x in limit_setters if x not in remote]
                if local:
                    self._register_folder()
                for settable in local:
                    self.actuators.append(
                        LeasedActuator(
                            settable, before, self._renew_leases, self._report, self._may_guard_restore
                        )
                    )
                self._guard_process = self._start_guard()
                detach_in_children(self)
        except BaseException:
            self._end_leases()
            raise
        self._heartbeat_thread = threading.Thread(target=self._run_heartbeat, name="ekc-lease", daemon=True)
        self._heartbeat_thread.start()
        # Not in the heartbeat: a driver that hangs in a reading must not look like a governor that hangs.
        threading.Thread(target=self._run_watch, name="ekc-limit-watch", daemon=True).start()

    @contextlib.contextmanager
    def suspend(self) -> Iterator[None]:
        """Restore previous settings during a `with` block, in which this process is stopped. No thread sets
        anything within it; the heartbeat after it sets the limits again."""
        with self._lease_lock, contextlib.ExitStack() as suspended:
            for actuator in () if self._closed.is_set() else self.actuators:
                try:
                    suspended.enter_context(actuator.suspend())
                except EkcError as problem:
                    self._report(f"{problem}; its guard tries on")
            yield

    @property
    def guard_pid(self) -> int:
        """Process id of the guard; 0 without one."""
        return self._guard_process.pid if self._guard_process else 0

    def close(self) -> list[str]:
        """Put everything back; returns the reason for each GPU where that failed. A second call does nothing,
        nor does a call in a process that was forked meanwhile."""
        if self._closed.is_set() or os.getpid() != self._owner_pid:
            return []
        self._closed.set()
        self._heartbeat_thread.join()
        problems = self._end_leases()
        self._dismiss_guard(wait=not problems)  # A guard with settings to put back goes on trying.
        return problems

    def detach(self) -> None:
        """In a forked child: leave the lease to the parent; no lock is safe to take here. With lock and pipe
        open in the child, the guard would outlive the parent."""
        if self._guard_process is not None and self._guard_process.stdin is not None:
            self._guard_process.stdin.close()
        for actuator in self.actuators:
            actuator.detach()

    def __enter__(self) -> LeaseKeeper:
        return self

    def __exit__(self, *_: object) -> None:
        for line in self.close():
            self._report(line)

    def _report(self, line: str) -> None:
        """Pass a line to `on_message`. The lease goes on where it raises (`warnings.warn` as an error)."""
        with contextlib.suppress(Exception):
            self._on_message(line)

    def _register_folder(self) -> None:
        """Register the folder of the leases; where that fails, only this user can find them."""
        try:
            register_lease_folder()
        except RecordError as problem:
            self._report(str(problem))

    def _run_watch(self) -> None:
        """Look for limits that others set."""
        while not self._closed.wait(WATCH_INTERVAL_S):
            for actuator in self.actuators:
                with contextlib.suppress(EkcError):  # The next reading, or the loop, will tell.
                    actuator.watch()

    def _end_leases(self) -> list[str]:
        problems = []
        for actuator in self.actuators:
            try:
                actuator.end()
            except EkcError as problem:
                remedy = "its guard tries on for a minute, after that: ekc govern --restore"
                problems.append(f"{problem}; {remedy}")
        return problems

    def _start_guard(self) -> subprocess.Popen[bytes] | None:
        """Start the guard in its own session, beyond a terminal's signals; returns when the guard watches.
        None where all leases are a daemon's."""
        own = [x.lease for x in self.actuators if isinstance(x, LeasedActuator)]
        if not own:
            return None
        leases = [word for lease in own for word in (lease.reference.gpu, lease.id)]
        try:
            guard = subprocess.Popen(
                [sys.executable, "-m", "ekc.devices.clocks.guard", *leases],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,  # No buffer: another thread may hold its lock at a fork.
                start_new_session=True,
            )
        except OSError as problem:
            reason = problem.strerror or type(problem).__name__
            raise DriverTrouble(
                f"the guard process did not start ({reason}), so nothing may be set"
            ) from None
        assert guard.stdin is not None
        assert guard.stdout is not None
        with guard.stdout:
            answers = select.select([guard.stdout], [], [], GUARD_START_TIMEOUT_S)[0]
            if not answers or guard.stdout.readline() != GUARD_READY:
                guard.kill()
                raise DriverTrouble("the guard process did not start, so nothing may be set")
        os.set_blocking(guard.stdin.fileno(), False)
        return guard

    def _run_heartbeat(self) -> None:
        last_problem = None
        while not self._closed.wait(HEARTBEAT_INTERVAL_S):
            try:
                self._send_heartbeat()
                last_problem = None
            except Exception as problem:
                # Any error: without a heartbeat the guard assumes that this process died.
                if str(problem) != last_problem:
                    last_problem = str(problem)
                    self._report(f"{last_problem}; it is tried again until it is done")

    def _send_heartbeat(self) -> None:
        with self._lease_lock:
            if not self._has_all_leases():
                self._retake_leases()
            elif self._guard_process is not None and self._guard_process.poll() is not None:
                self._restart_guard()
                self._report("the guard had ended; a new one was started")
            self._signal_guard()
            for actuator in self.actuators:
                actuator.close_queries()
                actuator.touch()
            self._reapply_settings()

    def _signal_guard(self) -> None:
        """Send the guard a heartbeat."""
        now_s = time.monotonic()
        if now_s - self._signal_s > LATE_HEARTBEAT_S:
            self._late_s = now_s
        self._signal_s = now_s
        if self._guard_process is None:
            return
        assert self._guard_process.stdin is not None
        try:
            os.write(self._guard_process.stdin.fileno(), b".")
        except (BlockingIOError, BrokenPipeError):
            # The guard has not read for hours, or died just now; the next heartbeat starts another.
            self._guard_process.kill()

    def _may_guard_restore(self) -> bool:
        """Whether heartbeats were late, so that the guard may be restoring; its leases end a moment after."""
        now_s = time.monotonic()
        return now_s - self._signal_s > LATE_HEARTBEAT_S or now_s - self._late_s < GUARD_ACTION_S

    def _has_all_leases(self) -> bool:
        return all(x.is_active() for x in self.actuators)

    def _renew_leases(self) -> None:
        """Renew leases before the control loop sets something."""
        with self._lease_lock:
            if self._closed.is_set():
                raise ActuatorError("the lease is over, so nothing may be set")
            if not self._has_all_leases():  # Else the heartbeat renewed them.
                self._retake_leases()
            self._reapply_settings()

    def _retake_leases(self) -> None:
        """Take the leases again and start a guard for them; settings made under the old leases are due."""
        self._needs_reapply = True
        for actuator in self.actuators:
            actuator.retake()
        self._restart_guard()

    def _reapply_settings(self) -> None:
        """Set the due settings again, until all of them are: the state of the leases does not show it."""
        if not self._needs_reapply:
            return
        for actuator in self.actuators:
            actuator.reapply()
        self._needs_reapply = False
        self._report("the governor was stopped for a while, with the previous settings in force; set again")

    def _restart_guard(self) -> None:
        self._dismiss_guard()
        with hold_forks():
            self._guard_process = self._start_guard()

    def _dismiss_guard(self, wait: bool = True) -> None:
        """Close the pipe of a guard whose leases are over; the guard then ends."""
        if self._guard_process is None:
            return
        assert self._guard_process.stdin is not None
        self._guard_process.stdin.close()
        if wait:
            self._guard_process.wait()


__all__ = ["LeaseKeeper", "LeasedActuator", "restore_all"]
