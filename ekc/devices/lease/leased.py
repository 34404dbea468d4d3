"""The actuator that the control loop gets: every setting passes the lease first."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ekc.devices.lease import record
from ekc.devices.lease.one import OneGovernor
from ekc.devices.lease.record import Lease
from ekc.devices.lease.restore import Restored, end, end_stale
from ekc.devices.limits.settable import LIMITS, Gears, Limit, Settable, Settings


class Leased:
    """One GPU under lease; an `Actuator`.

    What was in force before is a bound: None means "as before", not "the driver's default", and
    nothing is ever looser than before. `before` tells what NVML cannot: clock limits that hold already.
    """

    simulated = False

    def __init__(self, settable: Settable, before: Settings, renew: Callable[[], None]) -> None:
        self._settable = settable
        self._renew = renew
        self._turn = threading.Lock()
        """Loop and heart both set limits: one after the other, and last what was asked for last."""
        self._one = OneGovernor(settable.reference.gpu, settable.label)
        try:
            self.found: Restored | None = end_stale(settable.reference.gpu)
            """What an earlier governor had left behind."""
            self.lease = _first_lease(settable, before)
            self._in_force = self.lease.previous
            self._asked = Settings()
            self._unsure: set[Limit] = set()
            record.write(self.lease)
        except BaseException:
            self._one.close()
            raise

    @property
    def label(self) -> str:
        """That of the actuator."""
        return self._settable.label

    def gears(self) -> Gears:
        """What can be set, up to what was in force before."""
        gears: dict[str, Any] = {limit: self._allowed(limit) for limit in LIMITS}
        return Gears(**gears)

    def settings(self) -> Settings:
        """What was asked for last, None where it is as before."""
        return self._asked

    def apply(self, settings: Settings) -> None:
        """Set what differs from now. Raises `ActuatorError`; what was set until then stays leased."""
        wanted = self._within(settings)
        if not self.held():
            self._renew()
        with self._turn:
            self._asked = settings
            self._put(wanted)

    def repeat(self) -> None:
        """Put in force once more what was asked for last, whoever asks for what meanwhile."""
        with self._turn:
            self._put(self._within(self._asked))

    def _within(self, settings: Settings) -> Settings:
        return _settings({limit: self._bounded(limit, getattr(settings, limit)) for limit in LIMITS})

    def _put(self, wanted: Settings) -> None:
        known = {x: getattr(self._in_force, x) for x in LIMITS if x not in self._unsure}
        changed = [x for x in LIMITS if x not in known or getattr(wanted, x) != known[x]]
        if not changed:
            return
        with record.exclusive(self.lease.reference.gpu):
            self._touch(changed)
            for limit in changed:
                self._unsure.add(limit)  # What fails (a late answer, say) may have been done all the same.
                self._settable.put(limit, getattr(wanted, limit))
                self._in_force = replace(self._in_force, **{limit: getattr(wanted, limit)})
                self._unsure.discard(limit)

    def held(self) -> bool:
        """Whether the lease is still ours; a guard ends that of a governor that was stopped or hung."""
        now = record.read(record.path(self.lease.reference.gpu))
        return now is not None and now.id == self.lease.id

    def let_go(self) -> None:
        """Of processes that have asked who governs this GPU."""
        self._one.let_go()

    def take_again(self) -> None:
        """Lease once more.

        The guard has put everything back, but we may have been stopped in the middle of setting: what was
        touched is touched still, and set again whatever it seems to be.
        """
        with self._turn:
            self.lease = replace(self.lease, id=uuid.uuid4().hex)
            record.write(self.lease)
            self._unsure = set(self.lease.touched)

    def end(self) -> None:
        """Previous settings back, lease over. Raises `ActuatorError`; the lease file stays then."""
        try:
            end(self.lease, self._settable)
        finally:
            self._one.close()

    def abandon(self) -> None:
        """In a forked child: the lease is its parent's, and ends with that one."""
        self._one.close()

    def _touch(self, limits: list[Limit]) -> None:
        """Written down before it is done."""
        touched = tuple(x for x in LIMITS if x in self.lease.touched or x in limits)
        if touched != self.lease.touched:
            fresh = replace(self.lease, touched=touched)
            record.write(fresh)
            self.lease = fresh

    def _allowed(self, limit: Limit) -> tuple[int | float, ...]:
        bound = getattr(self.lease.previous, limit)
        gears: tuple[int | float, ...] = getattr(self._settable.gears(), limit)
        return gears if bound is None else tuple(gear for gear in gears if gear <= bound)

    def _bounded(self, limit: Limit, value: float | None) -> float | None:
        bound: float | None = getattr(self.lease.previous, limit)
        if value is None or bound is None:
            return _first(value, bound)
        return min(value, bound)


def _first_lease(settable: Settable, before: Settings) -> Lease:
    """What was told of before counts where it can not be read."""
    read = settable.settings()
    previous = _settings({limit: _first(getattr(before, limit), getattr(read, limit)) for limit in LIMITS})
    fresh, boot = uuid.uuid4().hex, record.boot()
    return Lease(fresh, settable.reference, settable.label, previous, (), os.getpid(), boot)


def _settings(values: dict[Limit, Any]) -> Settings:
    return Settings(**values)


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
