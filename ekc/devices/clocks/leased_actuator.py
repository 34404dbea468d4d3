"""The actuator of one GPU under a lease: each setting is written into the lease before it is made, and limits
that others set meanwhile are left to them.

A power cap can be read back, a clock limit cannot: no NVML call returns it. The clock of a busy board tells
of it. A clock above our limit means that the limit was reset or raised. A clock that stays well below what
the limit allows, while the driver names no reason (power, heat, hardware), means that someone has set a lower
one. Where that is uncertain, nothing is noticed: a limit close to ours, or one that is set on an idle board.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ekc.devices.clocks import lease_file
from ekc.devices.clocks.lease_file import GovernorLock, Lease
from ekc.devices.clocks.limits import (
    LIMIT_NAMES,
    LIMITS,
    GovernedLimits,
    Limit,
    LimitReading,
    LimitSetter,
    LimitTaken,
    OfferedSettings,
    Settings,
    select_offered,
)
from ekc.devices.clocks.restore import CAP_TOLERANCE_W, RestoreResult, end_stale_lease, restore_settings
from ekc.errors import ActuatorError, EkcError, RecordError

INTERVAL_S = 0.5
"""Seconds between two readings."""
SETTLE_S = 1.0
"""Seconds after a change of ours until a clock shows it."""
ABOVE_MHZ = 20.0
"""MHz above our limit that no rounding to a clock of the board explains."""
BOUND_MHZ = 45.0
"""MHz below our limit where the clock was seen to be bound by it before."""
LOW_SHARE = 0.93
"""Share of the highest clock seen below which the clock of a busy, unthrottled board is unusual."""
STEADY_MHZ = 20.0
"""MHz within which readings under a clock limit lie."""
READINGS_ABOVE, READINGS_BELOW = 2, 6
"""Readings in a row that show another's limit. Readings below ours also have other causes for a moment."""


@dataclass
class ClockWatch:
    """Watches one clock of a board; `add_reading` says once others have set its limit."""

    highest_mhz: float = 0.0
    """Highest clock seen on the busy board, under any limit."""
    _limit_mhz: float | None = None
    _is_bound: bool = False
    """Whether the clock was at our limit since that was set."""
    _above: int = 0
    _below_mhz: list[float] = field(default_factory=list)
    _since_s: float = 0.0

    def note_limit(self, limit_mhz: float | None, at_s: float) -> None:
        """Our limit has been set, None for that of before."""
        self._limit_mhz, self._since_s, self._is_bound = limit_mhz, at_s, False
        self._above, self._below_mhz = 0, []

    @property
    def is_suspicious(self) -> bool:
        """Whether the last readings may be those of another's limit."""
        return self._above > 0 or bool(self._below_mhz)

    def add_reading(self, mhz: float | None, reading: LimitReading, at_s: float) -> str:
        """The sign that others have set the limit; empty where nothing does."""
        if mhz is None or at_s < self._since_s + SETTLE_S:
            return ""
        limit = self._limit_mhz
        is_above = limit is not None and mhz > limit + ABOVE_MHZ
        self._above = self._above + 1 if is_above else 0
        if self._above >= READINGS_ABOVE:
            return f"it runs at {mhz:g} MHz, above the limit of {limit:g} MHz"
        if not reading.is_busy or is_above:
            return ""
        self.highest_mhz = max(self.highest_mhz, mhz)
        self._is_bound |= limit is not None and abs(mhz - limit) <= STEADY_MHZ
        return self._judge_low_clock(mhz, reading.is_throttled)

    def _judge_low_clock(self, mhz: float, is_throttled: bool) -> str:
        limit = self._limit_mhz
        usual = self.highest_mhz if limit is None else min(limit, self.highest_mhz)
        least = usual - BOUND_MHZ if self._is_bound else LOW_SHARE * usual
        if is_throttled or mhz >= least:
            self._below_mhz = []
            return ""
        if self._below_mhz and abs(mhz - self._below_mhz[0]) > STEADY_MHZ:
            self._below_mhz = []
        self._below_mhz.append(mhz)
        if len(self._below_mhz) < READINGS_BELOW:
            return ""
        return f"it stays at {mhz:g} MHz, below {usual:g} MHz, and the driver gives no reason"


def explain_foreign_cap(reading: LimitReading, possible_caps_w: Sequence[float]) -> str:
    """The sign that others have set the power cap; empty where nothing does."""
    cap = reading.power_w
    if cap is None or any(abs(cap - ours) <= CAP_TOLERANCE_W for ours in possible_caps_w):
        return ""
    return f"it is {cap:g} W, and not {' or '.join(f'{x:g} W' for x in sorted(set(possible_caps_w)))}"


MAX_SUSPICION_S, SUSPICION_POLL_S = 4.0, 0.25
"""Longest wait in seconds for readings that tell whether others have set a clock, and time between two."""


class LeasedActuator(GovernedLimits):
    """An `Actuator` of one GPU under a lease.

    The settings before the lease are bounds: None means "as before", not "the default of the driver", and no
    limit is ever looser than before. The argument `before` has the limits that NVML cannot read: clock limits
    already in force.

    A limit that others set meanwhile is theirs from then on: it is not set any more, nor restored at the end.
    `report` gets one line. `may_be_restored` says whether the guard may have restored limits just now, since
    this process was late: those are not the settings of others. `tell_guard` is called after each change of
    the lease.

    The lease in memory is what goes back at the end: its file may be damaged, and the disk full.
    """

    def __init__(
        self,
        limit_setter: LimitSetter,
        previous_settings: Settings,
        renew_lease: Callable[[], None],
        report: Callable[[str], None] = lambda line: None,
        may_be_restored: Callable[[], bool] = lambda: False,
        tell_guard: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(limit_setter, renew_lease)
        self._report = report
        self._may_be_restored = may_be_restored
        self._tell_guard = tell_guard
        self._governor_lock = GovernorLock(limit_setter.reference.gpu, limit_setter.label)
        try:
            if self._governor_lock.ignored:
                report(self._governor_lock.ignored)
            self.restored: RestoreResult | None = end_stale_lease(limit_setter.reference.gpu)
            """Result of restoring the settings that an earlier governor left behind."""
            reading = limit_setter.read_board()
            self.lease = _make_lease(limit_setter, previous_settings, reading)
            self._settings_in_force = self.lease.previous
            self._uncertain_limits: set[Limit] = set()
            self._default_cap_w = reading.default_power_w
            self._uncertain_caps_w: set[float] = set()
            """Caps of calls that failed, which may have had their effect, or may have it later."""
            self._watches: dict[Limit, ClockWatch] = {"sm_mhz": ClockWatch(), "memory_mhz": ClockWatch()}
            self._taken_limits: set[Limit] = set()
            self._change_count = 0
            """Number of changes of the limits, by which a reading is known to be older than a change."""
            self._has_ended = False
            lease_file.write_lease(self.lease)
        except BaseException:
            self._governor_lock.close()
            raise

    def list_offered(self) -> OfferedSettings:
        """Values that can be set, up to the limits before the lease; none once others have set a clock."""
        return select_offered(
            self._limit_setter.list_offered(), Settings(), self.lease.previous, self._taken_limits
        )

    def taken_limits(self) -> frozenset[Limit]:
        """Limits that others have set since the lease began."""
        return frozenset(self._taken_limits)

    def apply(self, settings: Settings) -> None:
        """Set the limits that differ. Raises `ActuatorError`; limits set until then stay leased. Raises
        `LimitTaken` for a limit that others have set, and `RecordError` where a new limit cannot be recorded.
        Going back to the limits of before needs no record."""
        self._look_for_others()
        bounded = self._bound_settings(settings)
        if bounded != self.lease.previous and self.find_loss() is not None:
            self._renew_lease()
        with self._lock:
            self._requested_settings = settings
            self._set_limits(bounded)
        taken = [
            LIMIT_NAMES[x] for x in LIMITS if x in self._taken_limits and getattr(settings, x) is not None
        ]
        if taken:
            raise LimitTaken(f"{self.label}: others have set {', '.join(taken)}; that is not set any more")

    def reapply(self) -> None:
        """Set the limits requested last once more; a request by another thread meanwhile wins."""
        with self._lock:
            self._set_limits(self._bound_settings(self._requested_settings))

    def watch(self) -> None:
        """Read the board once, and stand back from limits that others have set. Raises `ActuatorError`."""
        with self._lock:
            change_count = self._change_count
        reading = self._limit_setter.read_board()
        with self._lock:
            # The reading may be older than a change, and so may the lease that the guard has ended.
            if change_count != self._change_count or self._has_ended:
                return
            found = self._find_taken_limits(reading, time.monotonic())
            if found and self.find_loss() is None and not self._may_be_restored():
                self._stand_back(found)

    def _look_for_others(self) -> None:
        """Before something is set: what others have set a moment ago must not be replaced."""
        with contextlib.suppress(EkcError):  # Setting will fail too, and says why.
            self.watch()
            end_s = time.monotonic() + MAX_SUSPICION_S
            while self._has_suspicion() and time.monotonic() < end_s:
                time.sleep(SUSPICION_POLL_S)
                self.watch()

    def _has_suspicion(self) -> bool:
        """Whether the last readings may be those of another's clock limit."""
        judged = self._watches.keys() - self._taken_limits - self._uncertain_limits
        return any(self._watches[x].is_suspicious for x in judged)

    def _find_taken_limits(self, reading: LimitReading, at_s: float) -> dict[Limit, str]:
        """Limits that others have set, each with what shows that."""
        found: dict[Limit, str] = {}
        for limit, watch in self._watches.items():
            if limit not in self._taken_limits | self._uncertain_limits:
                found[limit] = watch.add_reading(getattr(reading, limit), reading, at_s)
        if "power_w" not in self._taken_limits | self._uncertain_limits:
            cap_w = self._find_cap_w(self._settings_in_force.power_w)
            if cap_w is not None:
                found["power_w"] = explain_foreign_cap(reading, (cap_w, *self._uncertain_caps_w))
        return {limit: why for limit, why in found.items() if why}

    def _stand_back(self, found: dict[Limit, str]) -> None:
        """Leave limits to those who have set them."""
        left = tuple(x for x in self.lease.touched if x not in found)
        values: dict[str, Any] = dict.fromkeys(found)
        self._taken_limits |= found.keys()
        fresh = replace(self.lease, touched=left, in_force=replace(self.lease.in_force, **values))
        with lease_file.lock_lease(fresh.reference.gpu), contextlib.suppress(RecordError):
            lease_file.write_lease(fresh)  # Where it cannot be written, this process and its guard know it.
        self._adopt_lease(fresh)
        for limit, why in found.items():
            self._report(
                f"{self.label}: others have set {LIMIT_NAMES[limit]}: {why}; ekc sets it no more, and leaves "
                "it as it is at the end"
            )

    def _bound_settings(self, settings: Settings) -> Settings:
        """Settings that are no looser than those before the lease."""
        values: dict[str, Any] = {}
        for limit in LIMITS:
            bounds = (getattr(settings, limit), getattr(self.lease.previous, limit))
            values[limit] = min((x for x in bounds if x is not None), default=None)
        return Settings(**values)

    def _set_limits(self, settings: Settings) -> None:
        current = {x: getattr(self._settings_in_force, x) for x in LIMITS if x not in self._uncertain_limits}
        changed = [
            x
            for x in LIMITS
            if x not in self._taken_limits and (x not in current or getattr(settings, x) != current[x])
        ]
        if not changed:
            return
        self._change_count += 1
        goes_back = all(getattr(settings, x) == getattr(self.lease.previous, x) for x in changed)
        with lease_file.lock_lease(self.lease.reference.gpu):
            try:
                self._record_request(changed, settings)
            except RecordError:
                if not goes_back:  # Limits that go back are in the lease already.
                    raise
            for limit in changed:
                self._set_limit(limit, getattr(settings, limit))

    def _set_limit(self, limit: Limit, value: float | None) -> None:
        """Set one limit; a call that fails (a late reply, say) may have had its effect."""
        self._uncertain_limits.add(limit)
        try:
            self._limit_setter.set_limit(limit, value)
        except ActuatorError:
            if limit == "power_w" and (cap_w := self._find_cap_w(value)) is not None:
                self._uncertain_caps_w.add(cap_w)
            raise
        self._note_limit(limit, value)

    def _note_limit(self, limit: Limit, value: float | None) -> None:
        """Note a limit that is certainly in force."""
        change: dict[str, Any] = {limit: value}
        self._settings_in_force = replace(self._settings_in_force, **change)
        self._uncertain_limits.discard(limit)
        if limit in self._watches:
            self._watches[limit].note_limit(value, time.monotonic())

    def _find_cap_w(self, power_w: float | None) -> float | None:
        """Watts of a power cap, also of the default one; None where the board reports none."""
        return self._default_cap_w if power_w is None else power_w

    def find_loss(self) -> str | None:
        """Why the lease is no longer ours; None where it is. A guard ends the lease of a governor that was
        stopped or hung."""
        try:
            now = lease_file.read_lease(lease_file.make_lease_path(self.lease.reference.gpu))
        except EkcError as problem:
            return f"its file was damaged: {problem.__cause__ or problem}"
        is_ours = now is not None and now.id == self.lease.id
        return None if is_ours else "the governor was stopped for a while, or its file was deleted"

    def close_queries(self) -> None:
        """Close the connections of processes that asked who governs this GPU."""
        self._governor_lock.close_queries()

    def touch(self) -> None:
        """Note in the lease that this process runs."""
        lease_file.touch_lease(self.lease.reference.gpu)

    def retake(self) -> None:
        """Take the lease again, after the guard has restored all limits or the file was lost: this process
        may have been stopped while it set something. Limits touched before are set again, whatever their
        value seems to be. Where the lease cannot be written, the limits go back, and `RecordError` is raised.
        """
        with self._lock:
            self._change_count += 1
            try:
                self._write_lease(id=uuid.uuid4().hex)
            except RecordError:
                self._go_back()
                raise
            self._uncertain_limits = set(self.lease.touched)

    @contextlib.contextmanager
    def suspend(self) -> Iterator[None]:
        """Restore previous settings and end the lease during a `with` block, in which nothing is set. Raises
        `ActuatorError`; the lease file stays then."""
        with self._lock:
            self._change_count += 1
            self._end_lease()
            yield

    def end(self) -> None:
        """Restore previous settings and end the lease. Raises `ActuatorError`, where the lease file stays,
        and `RecordError` for one that cannot be deleted."""
        try:
            with self._lock:
                self._has_ended = True
                self._end_lease()
        finally:
            self._governor_lock.close()

    def _end_lease(self) -> None:
        with lease_file.lock_lease(self.lease.reference.gpu):
            self._go_back()
            lease_file.erase_lease(self.lease.reference.gpu)

    def _go_back(self) -> None:
        """Restore previous settings by the lease in memory, whatever its file holds."""
        lease = self.lease
        restore_settings(lease, self._limit_setter)
        self._adopt_lease(replace(lease, touched=(), in_force=Settings()))
        for limit in lease.touched:
            self._note_limit(limit, getattr(lease.previous, limit))

    def detach(self) -> None:
        """In a forked child: the lease belongs to the parent and ends with it."""
        self._governor_lock.close()

    def _record_request(self, limits: list[Limit], settings: Settings) -> None:
        """Record limits as touched in the lease file, and the values of all, before they are set."""
        touched = tuple(x for x in LIMITS if x in self.lease.touched or x in limits)
        values: dict[str, Any] = {
            x: getattr(self._requested_settings, x) for x in LIMITS if x not in self._taken_limits
        }
        caps = [self._find_cap_w(x.power_w) for x in (self._settings_in_force, settings)]
        known = {*self._uncertain_caps_w, *(x for x in caps if x is not None)}
        self._write_lease(touched=touched, in_force=Settings(**values), possible_caps_w=tuple(sorted(known)))

    def _write_lease(self, **changes: Any) -> None:
        fresh = replace(self.lease, **changes)
        lease_file.write_lease(fresh)
        self._adopt_lease(fresh)

    def _adopt_lease(self, lease: Lease) -> None:
        self.lease = lease
        self._tell_guard()


def _make_lease(limit_setter: LimitSetter, previous_settings: Settings, reading: LimitReading) -> Lease:
    """A new lease; given settings count where the driver cannot read them."""
    given, values = asdict(previous_settings), asdict(limit_setter.settings())
    values |= {limit: value for limit, value in given.items() if value is not None}
    return Lease(
        id=uuid.uuid4().hex,
        reference=limit_setter.reference,
        label=limit_setter.label,
        previous=Settings(**values),
        touched=(),
        governor=os.getpid(),
        boot=lease_file.read_boot_id(),
        possible_caps_w=() if reading.power_w is None else (reading.power_w,),
    )
