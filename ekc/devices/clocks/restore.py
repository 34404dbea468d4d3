"""Restoring the settings that this user's leases remember."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ekc.devices.clocks import lease_file
from ekc.devices.clocks.lease_file import (
    GovernedElsewhereError,
    GovernorLock,
    Lease,
    does_governor_answer,
    find_governor,
)
from ekc.devices.clocks.limits import LIMIT_NAMES, LimitReading, LimitSetter, format_settings
from ekc.devices.clocks.open import reopen_actuator
from ekc.errors import ActuatorError, EkcError, RecordError
from ekc.processes.process_facts import is_stopped

SETTINGS_RESTORED = "previous settings are back"
NOTHING_SET = "nothing had been set"
MACHINE_RESTARTED = "the machine has been started since; nothing put back"
CAP_TOLERANCE_W = 1.0
"""Watts by which a cap that is read back may differ from the one that was set."""
HEARTBEAT_TIMEOUT_S = 5.0
"""Seconds without a heartbeat in the lease after which its governor, and its guard, do not run."""


@dataclass(frozen=True)
class RestoreResult:
    """Outcome of restoring one lease; `problem` is the reason why something was left."""

    label: str
    outcome: str = SETTINGS_RESTORED
    problem: str | None = None

    def __str__(self) -> str:
        return f"{self.label}: {self.problem or self.outcome}"


def restore_settings(lease: Lease, limit_setter: LimitSetter) -> str:
    """Restore all limits that were touched, even where some fail; raises the first `ActuatorError`. A power
    cap that someone else has set since is kept. Returns the outcome in words."""
    problems: list[ActuatorError] = []
    reading = limit_setter.read_board() if "power_w" in lease.touched else None
    kept = reading is not None and _is_cap_of_another(lease, reading)
    for limit in lease.touched:
        if kept and limit == "power_w":
            continue
        try:
            limit_setter.set_limit(limit, getattr(lease.previous, limit))
        except ActuatorError as problem:
            problems.append(problem)
    if problems:
        raise problems[0]
    if kept and reading is not None:
        return f"{SETTINGS_RESTORED}, but the cap of {reading.power_w:g} W, which someone else set, is kept"
    return SETTINGS_RESTORED


def _is_cap_of_another(lease: Lease, reading: LimitReading) -> bool:
    """Whether the cap in force is neither one that the lease's governor set nor that of before."""
    if reading.power_w is None or lease.possible_caps_w is None:
        return False
    before = lease.previous.power_w or reading.default_power_w
    ours = (*lease.possible_caps_w, *(() if before is None else (before,)))
    return all(abs(reading.power_w - cap) > CAP_TOLERANCE_W for cap in ours)


def end_lease(lease: Lease, limit_setter: LimitSetter | None = None) -> str:
    """Restore settings and delete the lease file; nothing where the lease has ended or another one took its
    place.

    Returns the outcome in words. After a reboot the file is deleted and nothing is restored: an administrator
    may have set limits since.

    Raises `ActuatorError`, where the file stays for a later try, and `RecordError` for a damaged file, or one
    that cannot be deleted.
    """
    gpu = lease.reference.gpu
    with lease_file.lock_lease(gpu):
        now = lease_file.read_lease(lease_file.make_lease_path(gpu))
        if now is None or now.id != lease.id:
            return SETTINGS_RESTORED  # Whoever ended the lease restored them.
        outcome = _restore_touched(now, limit_setter)
        lease_file.erase_lease(gpu)
        return outcome


def _restore_touched(lease: Lease, limit_setter: LimitSetter | None) -> str:
    if lease.predates_boot:
        return MACHINE_RESTARTED
    if not lease.touched:
        return NOTHING_SET
    return restore_settings(lease, limit_setter or reopen_actuator(lease.reference))


def end_stale_lease(gpu: str) -> RestoreResult | None:
    """Restore what a governor of this user that has ended left on a GPU; None where nothing is left. The
    caller holds the `GovernorLock` of the GPU. Raises `EkcError` where that fails."""
    lease = lease_file.read_lease(lease_file.make_lease_path(gpu))
    return None if lease is None else RestoreResult(lease.label, end_lease(lease))


def restore_all() -> list[RestoreResult]:
    """Restore every lease of this user whose governor has ended or does not run."""
    files = sorted(lease_file.prepare_lease_folder().glob("*.json"))
    return [_restore_unless_governed(file) for file in files]


def _restore_unless_governed(file: Path) -> RestoreResult:
    gpu, lease, damage = file.stem, None, None
    try:
        lease = lease_file.read_lease(file)
    except RecordError as problem:
        damage = str(problem)
    governor = find_governor(gpu)
    if governor is not None:
        silent_s = None if lease is None else _compute_silent_s(file, lease)
        if lease is None or silent_s is None or governor.pid != lease.governor:
            name = f"process {governor.pid}" if governor.pid else "a process that its lease does not name"
            now = f"governed by {name}; end that one instead"
            return RestoreResult(lease.label if lease else gpu, problem=now)
        return _restore_suspended(lease, silent_s)
    if lease is None:
        return RestoreResult(gpu, "its governor has just restored it", damage)
    try:
        with closing(GovernorLock(gpu, lease.label)) as lock:
            result = _end_found(lease)
    except GovernedElsewhereError as governed:
        return RestoreResult(lease.label, problem=str(governed))
    ignored = f"; {lock.ignored}" if lock.ignored else ""
    left = f"{result.problem}{ignored}" if result.problem else None
    return RestoreResult(result.label, result.outcome + ignored, left)


def _restore_suspended(lease: Lease, silent_s: float) -> RestoreResult:
    """Restore the lease of a governor that does not run. It takes the lease again when it goes on."""
    result = _end_found(lease)
    if result.problem is not None:
        return result
    state = f"governor {lease.governor} is suspended, without a heartbeat for {silent_s:.0f} s"
    words = f"{state}, and had set {_describe_settings(lease)}; {result.outcome} until it goes on"
    return RestoreResult(result.label, words)


def _end_found(lease: Lease) -> RestoreResult:
    try:
        return RestoreResult(lease.label, end_lease(lease))
    except EkcError as problem:
        return RestoreResult(lease.label, problem=str(problem))


def _describe_settings(lease: Lease) -> str:
    """Settings of a governor; a lease of an earlier version does not say the values."""
    names = ", ".join(LIMIT_NAMES[x] for x in lease.touched) or "nothing"
    return names if lease.possible_caps_w is None else format_settings(lease.in_force)


def _compute_silent_s(file: Path, lease: Lease) -> float | None:
    """Seconds since the last heartbeat of a governor that is stopped or frozen; None for one that runs."""
    try:
        silent_s = max(0.0, time.time() - file.stat().st_mtime)
    except OSError:
        return None  # It has just ended.
    if is_stopped(lease.governor):
        return silent_s
    # Earlier versions of ekc write no heartbeat into the lease.
    has_heartbeat = lease.possible_caps_w is not None
    if not has_heartbeat or silent_s < HEARTBEAT_TIMEOUT_S or does_governor_answer(file.stem):
        return None
    return silent_s
