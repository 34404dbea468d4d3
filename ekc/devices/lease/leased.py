"""The actuator that the control loop gets: every setting passes the lease first."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ekc.devices.lease import record
from ekc.devices.lease.one import GovernorLock
from ekc.devices.lease.record import Lease
from ekc.devices.lease.restore import RestoreResult, end_lease, end_stale_lease
from ekc.devices.limits.settable import LIMITS, Gears, Limit, LimitSetter, Settings


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
            record.write_lease(self.lease)
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
        with record.lock_lease(self.lease.reference.gpu):
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
        now = record.read_lease(record.make_lease_path(self.lease.reference.gpu))
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
            record.write_lease(self.lease)
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
            record.write_lease(fresh)
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
    fresh, boot = uuid.uuid4().hex, record.read_boot_id()
    return Lease(fresh, limit_setter.reference, limit_setter.label, previous, (), os.getpid(), boot)


def _make_settings(values: dict[Limit, Any]) -> Settings:
    return Settings(**values)


def _find_first_value(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
