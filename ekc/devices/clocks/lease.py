"""Leases: previous settings of a GPU come back, whatever ends the process that set others.

`LeaseKeeper` writes a lease file per GPU before anything is set, starts a guard process that watches this
process, sends the guard a heartbeat, and puts everything back at the end. Where this process and the guard
both die, the lease file stays, and `restore_all` (`ekc govern --restore`) or the next governor restores the
settings in it. A `LeasedActuator` is the actuator for the control loop: each setting passes the lease first.
"Governor" is any process with a lease, also a tuning run.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ekc.devices.clocks import lease_file
from ekc.devices.clocks.daemon.actuator import DaemonActuator, lease_from_daemon
from ekc.devices.clocks.daemon.client import DaemonLimits
from ekc.devices.clocks.lease_file import GUARD_READY, GovernorLock, Lease
from ekc.devices.clocks.limits import LIMITS, Gears, Limit, LimitSetter, Settings
from ekc.devices.clocks.restore import RestoreResult, end_lease, end_stale_lease, restore_all
from ekc.errors import ActuatorError, EkcError
from ekc.forks import detach_in_children, hold_forks


class LeasedActuator:
    """An `Actuator` of one GPU under a lease.

    The settings before the lease are bounds: None means "as before", not "the default of the driver", and no
    limit is ever looser than before. The argument `before` has the limits that NVML cannot read: clock limits
    already in force.
    """

    simulated = False

    def __init__(
        self, limit_setter: LimitSetter, previous_settings: Settings, renew_lease: Callable[[], None]
    ) -> None:
        self._limit_setter = limit_setter
        self._renew_lease = renew_lease
        self._lock = threading.Lock()
        """Serialises the control loop and the heartbeat, which both set limits: the last request counts."""
        self._governor_lock = GovernorLock(limit_setter.reference.gpu, limit_setter.label)
        try:
            self.restored: RestoreResult | None = end_stale_lease(limit_setter.reference.gpu)
            """Result of restoring the settings that an earlier governor left behind."""
            self.lease = _make_lease(limit_setter, previous_settings)
            self._settings_in_force = self.lease.previous
            self._requested_settings = Settings()
            self._uncertain_limits: set[Limit] = set()
            lease_file.write_lease(self.lease)
        except BaseException:
            self._governor_lock.close()
            raise

    @property
    def label(self) -> str:
        """Label of the actuator."""
        return self._limit_setter.label

    def gears(self) -> Gears:
        """Values that can be set, up to the limits before the lease."""
        gears: dict[str, Any] = {limit: self._list_allowed_values(limit) for limit in LIMITS}
        return Gears(**gears)

    def settings(self) -> Settings:
        """Settings requested last; None for a limit that is as before."""
        return self._requested_settings

    def apply(self, settings: Settings) -> None:
        """Set the limits that differ. Raises `ActuatorError`; limits set until then stay leased."""
        bounded = self._bound_settings(settings)
        if not self.is_active():
            self._renew_lease()
        with self._lock:
            self._requested_settings = settings
            self._set_limits(bounded)

    def reapply(self) -> None:
        """Set the limits requested last once more; a request by another thread meanwhile wins."""
        with self._lock:
            self._set_limits(self._bound_settings(self._requested_settings))

    def _bound_settings(self, settings: Settings) -> Settings:
        values: dict[str, Any] = {x: self._bound_value(x, getattr(settings, x)) for x in LIMITS}
        return Settings(**values)

    def _set_limits(self, settings: Settings) -> None:
        current = {x: getattr(self._settings_in_force, x) for x in LIMITS if x not in self._uncertain_limits}
        changed = [x for x in LIMITS if x not in current or getattr(settings, x) != current[x]]
        if not changed:
            return
        with lease_file.lock_lease(self.lease.reference.gpu):
            self._mark_touched(changed)
            for limit in changed:
                # A call that fails (a late reply, say) may have had its effect.
                self._uncertain_limits.add(limit)
                value = getattr(settings, limit)
                self._limit_setter.set_limit(limit, value)
                self._settings_in_force = replace(self._settings_in_force, **{limit: value})
                self._uncertain_limits.discard(limit)

    def is_active(self) -> bool:
        """Whether the lease is still ours; a guard ends the lease of a governor that was stopped or hung."""
        now = lease_file.read_lease(lease_file.make_lease_path(self.lease.reference.gpu))
        return now is not None and now.id == self.lease.id

    def close_queries(self) -> None:
        """Close the connections of processes that asked who governs this GPU."""
        self._governor_lock.close_queries()

    def retake(self) -> None:
        """Take the lease again after the guard has restored all limits: this process may have been stopped
        while it set something. Limits touched before are set again, whatever their value seems to be."""
        with self._lock:
            self.lease = replace(self.lease, id=uuid.uuid4().hex)
            lease_file.write_lease(self.lease)
            self._uncertain_limits = set(self.lease.touched)

    def end(self) -> None:
        """Restore previous settings and end the lease. Raises `ActuatorError`; the lease file stays then."""
        try:
            end_lease(self.lease, self._limit_setter)
        finally:
            self._governor_lock.close()

    def detach(self) -> None:
        """In a forked child: the lease belongs to the parent and ends with it."""
        self._governor_lock.close()

    def _mark_touched(self, limits: list[Limit]) -> None:
        """Record limits as touched in the lease file, before they are set."""
        touched = tuple(x for x in LIMITS if x in self.lease.touched or x in limits)
        if touched != self.lease.touched:
            fresh = replace(self.lease, touched=touched)
            lease_file.write_lease(fresh)
            self.lease = fresh

    def _list_allowed_values(self, limit: Limit) -> tuple[int | float, ...]:
        bound = getattr(self.lease.previous, limit)
        gears: tuple[int | float, ...] = getattr(self._limit_setter.gears(), limit)
        return gears if bound is None else tuple(gear for gear in gears if gear <= bound)

    def _bound_value(self, limit: Limit, value: float | None) -> float | None:
        bound: float | None = getattr(self.lease.previous, limit)
        if value is None or bound is None:
            return _find_first_value(value, bound)
        return min(value, bound)


def _make_lease(limit_setter: LimitSetter, previous_settings: Settings) -> Lease:
    """A new lease; given settings count where the driver cannot read them."""
    read = limit_setter.settings()
    values: dict[str, Any] = {
        x: _find_first_value(getattr(previous_settings, x), getattr(read, x)) for x in LIMITS
    }
    fresh, boot, label = uuid.uuid4().hex, lease_file.read_boot_id(), limit_setter.label
    return Lease(fresh, limit_setter.reference, label, Settings(**values), (), os.getpid(), boot)


def _find_first_value(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


HEARTBEAT_INTERVAL_S = 0.5
"""Seconds between two heartbeats; the guard waits for several times as long."""
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
        self._needs_reapply = False
        """Whether leases ended, and settings made under them are not in force again."""
        self.actuators: list[LeasedActuator | DaemonActuator] = []
        self._guard_process: subprocess.Popen[bytes] | None = None
        """None where a daemon keeps all leases, with guards of its own."""
        previous = previous_settings or Settings()
        try:
            # A child that is forked in between would hold locks and a pipe unknowingly.
            with hold_forks():
                remote = [x for x in limit_setters if isinstance(x, DaemonLimits)]
                self.actuators += lease_from_daemon(remote, previous, self._renew_leases, self._report)
                for settable in limit_setters:
                    if settable not in remote:
                        self.actuators.append(LeasedActuator(settable, previous, self._renew_leases))
                self._guard_process = self._start_guard()
                detach_in_children(self)
        except BaseException:
            self._end_leases()
            raise
        self._heartbeat_thread = threading.Thread(target=self._run_heartbeat, name="ekc-lease", daemon=True)
        self._heartbeat_thread.start()

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
            self._reapply_settings()

    def _signal_guard(self) -> None:
        """Send the guard a heartbeat."""
        if self._guard_process is None:
            return
        assert self._guard_process.stdin is not None
        try:
            os.write(self._guard_process.stdin.fileno(), b".")
        except (BlockingIOError, BrokenPipeError):
            # The guard has not read for hours, or died just now; the next heartbeat starts another.
            self._guard_process.kill()

    def _has_all_leases(self) -> bool:
        return all(x.is_active() for x in self.actuators)

    def _renew_leases(self) -> None:
        """Renew leases before the control loop sets something."""
        with self._lease_lock:
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
        self._report("the governor was stopped for a while and its guard put settings back; set again")

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
