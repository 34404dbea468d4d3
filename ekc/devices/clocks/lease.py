"""Leases: previous settings of a GPU come back, whatever ends the process that set others.

`LeaseKeeper` writes a lease file per GPU before anything is set, starts a guard process that watches this
process, sends the guard a heartbeat and each change of a lease, and puts everything back at the end. Where
this process and the guard both die, the lease file stays, and `restore_all` (`ekc govern --restore`) or the
next governor restores the settings in it. A `LeasedActuator` is the actuator for the control loop: each
setting passes the lease first. "Governor" is any process with a lease, also a tuning run.
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

from ekc.devices.clocks.daemon.client import DaemonActuator, DaemonLimits, lease_from_daemon
from ekc.devices.clocks.lease_file import GUARD_READY, format_lease
from ekc.devices.clocks.leased_actuator import INTERVAL_S as WATCH_INTERVAL_S
from ekc.devices.clocks.leased_actuator import LeasedActuator
from ekc.devices.clocks.limits import LimitSetter, Settings
from ekc.devices.clocks.restore import restore_all
from ekc.errors import ActuatorError, DriverTrouble, EkcError
from ekc.forks import detach_in_children, hold_forks
from ekc.tables import group_pairs

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
        self._losses: list[str] = []
        """Why leases were lost, one line each, while settings made under them are not in force again."""
        self._pipe_lock = threading.Lock()
        """Serialises messages to the guard, and its replacement by another one."""
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
                for settable in local:
                    self.actuators.append(
                        LeasedActuator(
                            settable,
                            before,
                            self._renew_leases,
                            self._report,
                            self._may_guard_restore,
                            self._tell_guard,
                        )
                    )
                self._start_guard()
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
            except ActuatorError as problem:
                remedy = "its guard tries on for a minute, after that: ekc govern --restore"
                problems.append(f"{problem}; {remedy}")
            except EkcError as problem:
                problems.append(str(problem))
        return problems

    def _start_guard(self) -> None:
        """Start the guard in its own session, beyond a terminal's signals; returns when the guard watches.
        Nothing where all leases are a daemon's."""
        with self._pipe_lock:  # A lease that changes from here on is sent to this guard.
            messages = self._make_messages()
            if not messages:
                return
            # The leases are in the pipe before the guard runs: this process may be killed at any moment.
            read_end, write_end = os.pipe()
            os.write(write_end, b"".join(messages))
            try:
                guard = subprocess.Popen(
                    [sys.executable, "-m", "ekc.devices.clocks.guard", str(len(messages))],
                    stdin=read_end,
                    stdout=subprocess.PIPE,
                    bufsize=0,  # No buffer: another thread may hold its lock at a fork.
                    start_new_session=True,
                )
            except OSError as problem:
                os.close(write_end)
                reason = problem.strerror or type(problem).__name__
                raise DriverTrouble(
                    f"the guard process did not start ({reason}), so nothing may be set"
                ) from None
            finally:
                os.close(read_end)
            os.set_blocking(write_end, False)
            guard.stdin = open(write_end, "wb", buffering=0)  # noqa: SIM115 - lives as long as the guard
            self._guard_process = guard
        assert guard.stdout is not None
        with guard.stdout:
            answers = select.select([guard.stdout], [], [], GUARD_START_TIMEOUT_S)[0]
            if not answers or guard.stdout.readline() != GUARD_READY:
                guard.kill()
                raise DriverTrouble("the guard process did not start, so nothing may be set")

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
            guard, are_retaken = self._guard_process, self._retake_lost_leases()
            if guard is not None and guard.poll() is not None and not are_retaken:
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
        self._send_to_guard(lambda: [b"\n"])

    def _tell_guard(self) -> None:
        """Send the guard the leases as they are now: it restores by them, whatever the lease files hold."""
        self._send_to_guard(self._make_messages)

    def _make_messages(self) -> list[bytes]:
        """A line for each lease; a pipe takes up to 4096 bytes completely or not at all."""
        own = [x.lease for x in self.actuators if isinstance(x, LeasedActuator)]
        return [f"{format_lease(lease)}\n".encode() for lease in own]

    def _send_to_guard(self, make_messages: Callable[[], list[bytes]]) -> None:
        with self._pipe_lock:
            guard = self._guard_process
            if guard is None or guard.stdin is None or guard.stdin.closed:
                return
            try:
                is_sent = all(os.write(guard.stdin.fileno(), x) == len(x) for x in make_messages())
            except (BlockingIOError, BrokenPipeError):
                is_sent = False
            if not is_sent:
                # It has not read for long, or died just now; the next heartbeat starts another.
                guard.kill()

    def _may_guard_restore(self) -> bool:
        """Whether heartbeats were late, so that the guard may be restoring; its leases end a moment after."""
        now_s = time.monotonic()
        return now_s - self._signal_s > LATE_HEARTBEAT_S or now_s - self._late_s < GUARD_ACTION_S

    def _find_losses(self) -> list[str]:
        """A line for the leases that are no longer ours, for each reason."""
        losses = ((actuator.find_loss(), actuator.label) for actuator in self.actuators)
        labels = group_pairs((reason, label) for reason, label in losses if reason is not None)
        return [f"the lease of {', '.join(x)} had ended ({reason})" for reason, x in labels.items()]

    def _renew_leases(self) -> None:
        """Renew leases before the control loop sets something."""
        with self._lease_lock:
            if self._closed.is_set():
                raise ActuatorError("the lease is over, so nothing may be set")
            self._retake_lost_leases()  # Nothing where the heartbeat renewed them.
            self._reapply_settings()

    def _retake_lost_leases(self) -> bool:
        """Where leases are lost, take all again and start a guard for them; settings made under the old
        leases are due."""
        if losses := self._find_losses():
            self._losses = self._losses or losses
            for actuator in self.actuators:
                actuator.retake()
            self._restart_guard()
        return bool(losses)

    def _reapply_settings(self) -> None:
        """Set the due settings again, until all of them are: the state of the leases does not show it."""
        if not self._losses:
            return
        for actuator in self.actuators:
            actuator.reapply()
        losses, self._losses = self._losses, []
        for line in losses:
            self._report(f"{line}; taken and set again")

    def _restart_guard(self) -> None:
        """Start another guard. The old one, which may be restoring, ends before anything is set again."""
        old = self._guard_process
        try:
            with hold_forks():
                self._start_guard()
        finally:
            if old is not None:
                old.kill()
                with old:  # Closes its pipe, and waits for its end.
                    pass

    def _dismiss_guard(self, wait: bool = True) -> None:
        """Close the pipe of a guard whose leases are over; the guard then ends."""
        guard = self._guard_process
        if guard is None:
            return
        assert guard.stdin is not None
        with self._pipe_lock:
            guard.stdin.close()
        if wait:
            guard.wait()


__all__ = ["LeaseKeeper", "LeasedActuator", "restore_all"]
