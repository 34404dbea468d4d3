"""The actuator of a GPU that the daemon sets, for a `LeaseKeeper`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ekc.devices.clocks.daemon.client import DaemonLease, DaemonLimits
from ekc.devices.clocks.lease_file import Lease, read_boot_id
from ekc.devices.clocks.limits import LIMIT_NAMES, LIMITS, Gears, Limit, LimitTaken, Settings
from ekc.devices.clocks.restore import RestoreResult
from ekc.errors import ActuatorError, DriverTrouble

RENEW_TIMEOUT_S = 10.0
"""Seconds for a lease to be taken again before a setting counts as failed: the daemon may be restarted, or
another job of a batch system may just have been suspended."""
RENEW_INTERVAL_S = 0.25


class DaemonActuator:
    """Sets one GPU through the daemon, which keeps lease file and guard. None means "as before"; limits are
    at most what was set before, and at least what the daemon's allow-list permits."""

    simulated = False
    restored: RestoreResult | None = None
    """The daemon restores what an earlier governor left, and logs it."""

    def __init__(
        self, limits: DaemonLimits, daemon_lease: DaemonLease, renew_lease: Callable[[], None]
    ) -> None:
        self._limits = limits
        self._daemon_lease = daemon_lease
        self._renew_lease = renew_lease
        self._gpu = limits.reference.gpu
        self._lock = threading.Lock()
        """Serialises the control loop and the heartbeat, which both set limits: the last request counts."""
        self._requested_settings = Settings()
        self.lease = Lease("", limits.reference, limits.label, self._before, (), os.getpid(), read_boot_id())

    @property
    def label(self) -> str:
        """Label of the actuator."""
        return self._limits.label

    @property
    def _before(self) -> Settings:
        return self._daemon_lease.before[self._gpu]

    def gears(self) -> Gears:
        """Values that can be set, from the lowest permitted ones up to the limits before the lease; none once
        others have set a clock."""
        taken = self.taken_limits()
        if taken - {"power_w"}:
            return Gears()
        values: dict[str, Any] = {
            limit: () if limit in taken else self._list_allowed_values(limit) for limit in LIMITS
        }
        return Gears(**values)

    def taken_limits(self) -> frozenset[Limit]:
        """Limits that others have set, as the daemon has noticed; they are theirs."""
        return self._daemon_lease.taken[self._gpu]

    def settings(self) -> Settings:
        """Settings requested last; None for a limit that is as before."""
        return self._requested_settings

    def apply(self, settings: Settings) -> None:
        """Set all limits; where the lease was lost, take it again first. Raises `ActuatorError`, and
        `LimitTaken` for a limit that others have set."""
        end_s = time.monotonic() + RENEW_TIMEOUT_S
        while not self._set(settings):
            try:
                self._renew_lease()
            except ActuatorError as problem:
                if time.monotonic() > end_s:
                    raise DriverTrouble(str(problem)) from problem
                time.sleep(RENEW_INTERVAL_S)
        taken = [LIMIT_NAMES[x] for x in self.taken_limits() if getattr(settings, x) is not None]
        if taken:
            raise LimitTaken(f"{self.label}: {', '.join(taken)}: set by others, so it is not set any more")

    def reapply(self) -> None:
        """Set the limits requested last once more; a request by another thread meanwhile wins. Raises
        `DriverTrouble`."""
        if not self._set():
            raise DriverTrouble(f"{self.label}: the lease is over")

    def _set(self, settings: Settings | None = None) -> bool:
        """Set new limits, or once more those requested last; False where the lease is over."""
        with self._lock:
            self._requested_settings = self._requested_settings if settings is None else settings
            return self._daemon_lease.set(self._gpu, self._bound_settings(self._requested_settings))

    def is_active(self) -> bool:
        """Whether the daemon still holds our lease."""
        return self._daemon_lease.is_held()

    def find_loss(self) -> str | None:
        """Why the lease is no longer held; None where it is."""
        return None if self.is_active() else "its connection to the daemon ended"

    def retake(self) -> None:
        """Take the lease again."""
        self._daemon_lease.take()

    @contextmanager
    def suspend(self) -> Iterator[None]:
        """Put the settings back and end the lease during a `with` block, in which nothing is set. Raises
        `ActuatorError`."""
        with self._lock:
            self._daemon_lease.end()
            yield

    def close_queries(self) -> None:
        """No effect: the daemon answers who governs the GPU."""

    def watch(self) -> None:
        """No effect: the daemon looks for limits that others set."""

    def touch(self) -> None:
        """No effect: the daemon has the lease file."""

    def end(self) -> None:
        """Put the settings back and end the lease. Raises `ActuatorError`."""
        self._daemon_lease.end()

    def detach(self) -> None:
        """In a forked child: the lease belongs to the parent and ends with it."""
        self._daemon_lease.close()

    def _list_allowed_values(self, limit: Limit) -> tuple[int | float, ...]:
        highest = getattr(self._before, limit)
        lowest = getattr(self._daemon_lease.lowest[self._gpu], limit) or 0
        gears: tuple[int | float, ...] = getattr(self._limits.gears(), limit)
        return tuple(x for x in gears if lowest <= x and (highest is None or x <= highest))

    def _bound_settings(self, settings: Settings) -> Settings:
        values: dict[str, Any] = {limit: getattr(settings, limit) for limit in LIMITS}
        for limit, value in values.items():
            highest = getattr(self._before, limit)
            if limit in self.taken_limits():
                values[limit] = None
            elif value is not None and highest is not None:
                values[limit] = min(value, highest)
        return Settings(**values)


def lease_from_daemon(
    gpus: Sequence[DaemonLimits],
    previous_settings: Settings,
    renew_lease: Callable[[], None],
    on_message: Callable[[str], None],
) -> list[DaemonActuator]:
    """Lease GPUs from their daemon, all with one connection. Raises `ActuatorError`, also for previous
    settings that the daemon does not know: it would put back others."""
    if not gpus:
        return []
    lease = DaemonLease(gpus, on_message)
    lease.take()
    for gpu in gpus:
        for limit in LIMITS:
            given, known = getattr(previous_settings, limit), getattr(lease.before[gpu.reference.gpu], limit)
            if given not in (None, known):
                lease.end()
                raise ActuatorError(
                    f"{gpu.label}: {limit} before is {given} here, and {known} for the daemon, which puts "
                    "the settings back; name it under [[before]] in its allow-list"
                )
    return [DaemonActuator(gpu, lease, renew_lease) for gpu in gpus]
