"""The promise that previous settings come back, whatever ends the process that set them.

`Keeper` writes a lease file per GPU before anything is set, starts a guard process that watches the
governor (whoever holds the lease: a tuning run too), and puts everything back at the end. Where governor and
guard both die, the file stays, and `restore_all` (`ekc govern --restore`) or the next governor puts back what
it tells.

The actuator that the control loop gets: every setting passes the lease first.

Holds the leases of a governor: starts the guard, beats for it, and puts everything back at the end.
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
from types import TracebackType
from typing import Any

from ekc.devices.clocks import lease_file
from ekc.devices.clocks.lease_file import GUARD_READY, GovernorLock, Lease
from ekc.devices.clocks.limits import LIMITS, Gears, Limit, LimitSetter, Settings
from ekc.devices.clocks.restore import RestoreResult, end_lease, end_stale_lease, restore_all
from ekc.errors import ActuatorError, EkcError
from ekc.forks import detach_in_children, hold_forks


class LeasedActuator:
    """One GPU under lease; an `Actuator`.

    What was in force before is a bound: None means "as before", not "the driver's default", and
    nothing is ever looser than before. `before` tells what NVML cannot: clock limits that hold already.
    """

    simulated = False

    def __init__(
        self, limit_setter: LimitSetter, previous_settings: Settings, renew_lease: Callable[[], None]
    ) -> None:
        self._limit_setter = limit_setter
        self._renew_lease = renew_lease
        self._lock = threading.Lock()
        """Loop and heart both set limits: one after the other, and last what was asked for last."""
        self._governor_lock = GovernorLock(limit_setter.reference.gpu, limit_setter.label)
        try:
            self.restored: RestoreResult | None = end_stale_lease(limit_setter.reference.gpu)
            """What an earlier governor had left behind."""
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
        """That of the actuator."""
        return self._limit_setter.label

    def gears(self) -> Gears:
        """What can be set, up to what was in force before."""
        gears: dict[str, Any] = {limit: self._list_allowed_values(limit) for limit in LIMITS}
        return Gears(**gears)

    def settings(self) -> Settings:
        """What was asked for last, None where it is as before."""
        return self._requested_settings

    def apply(self, settings: Settings) -> None:
        """Set what differs from now. Raises `ActuatorError`; what was set until then stays leased."""
        wanted = self._bound_settings(settings)
        if not self.is_active():
            self._renew_lease()
        with self._lock:
            self._requested_settings = settings
            self._set_limits(wanted)

    def reapply(self) -> None:
        """Put in force once more what was asked for last, whoever asks for what meanwhile."""
        with self._lock:
            self._set_limits(self._bound_settings(self._requested_settings))

    def _bound_settings(self, settings: Settings) -> Settings:
        return _make_settings({limit: self._bound_value(limit, getattr(settings, limit)) for limit in LIMITS})

    def _set_limits(self, settings: Settings) -> None:
        known = {x: getattr(self._settings_in_force, x) for x in LIMITS if x not in self._uncertain_limits}
        changed = [x for x in LIMITS if x not in known or getattr(settings, x) != known[x]]
        if not changed:
            return
        with lease_file.lock_lease(self.lease.reference.gpu):
            self._mark_touched(changed)
            for limit in changed:
                self._uncertain_limits.add(
                    limit
                )  # What fails (a late answer, say) may have been done all the same.
                self._limit_setter.set_limit(limit, getattr(settings, limit))
                self._settings_in_force = replace(
                    self._settings_in_force, **{limit: getattr(settings, limit)}
                )
                self._uncertain_limits.discard(limit)

    def is_active(self) -> bool:
        """Whether the lease is still ours; a guard ends that of a governor that was stopped or hung."""
        now = lease_file.read_lease(lease_file.make_lease_path(self.lease.reference.gpu))
        return now is not None and now.id == self.lease.id

    def close_queries(self) -> None:
        """Of processes that have asked who governs this GPU."""
        self._governor_lock.close_queries()

    def retake(self) -> None:
        """Lease once more.

        The guard has put everything back, but we may have been stopped in the middle of setting: what was
        touched is touched still, and set again whatever it seems to be.
        """
        with self._lock:
            self.lease = replace(self.lease, id=uuid.uuid4().hex)
            lease_file.write_lease(self.lease)
            self._uncertain_limits = set(self.lease.touched)

    def end(self) -> None:
        """Previous settings back, lease over. Raises `ActuatorError`; the lease file stays then."""
        try:
            end_lease(self.lease, self._limit_setter)
        finally:
            self._governor_lock.close()

    def detach(self) -> None:
        """In a forked child: the lease is its parent's, and ends with that one."""
        self._governor_lock.close()

    def _mark_touched(self, limits: list[Limit]) -> None:
        """Written down before it is done."""
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
    """What was told of before counts where it can not be read."""
    read = limit_setter.settings()
    previous = _make_settings(
        {
            limit: _find_first_value(getattr(previous_settings, limit), getattr(read, limit))
            for limit in LIMITS
        }
    )
    fresh, boot = uuid.uuid4().hex, lease_file.read_boot_id()
    return Lease(fresh, limit_setter.reference, limit_setter.label, previous, (), os.getpid(), boot)


def _make_settings(values: dict[Limit, Any]) -> Settings:
    return Settings(**values)


def _find_first_value(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


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
                [sys.executable, "-m", "ekc.devices.clocks.guard", *leases],
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


__all__ = ["LeaseKeeper", "LeasedActuator", "restore_all"]
