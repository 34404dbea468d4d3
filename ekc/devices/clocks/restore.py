"""Restoring the settings that a lease remembers."""

from __future__ import annotations

from dataclasses import dataclass

from ekc.devices.clocks import lease_file
from ekc.devices.clocks.lease_file import Lease, find_governor_pid
from ekc.devices.clocks.limits import LimitSetter
from ekc.devices.clocks.open import reopen_actuator
from ekc.errors import ActuatorError, EkcError

SETTINGS_RESTORED = "previous settings are back"
NOTHING_SET = "nothing had been set"
MACHINE_RESTARTED = "the machine has been started since; nothing put back"


@dataclass(frozen=True)
class RestoreResult:
    """Outcome of restoring one lease; `problem` is the reason of a failure."""

    label: str
    outcome: str = SETTINGS_RESTORED
    problem: str | None = None

    def __str__(self) -> str:
        return f"{self.label}: {self.problem or self.outcome}"


def restore_settings(lease: Lease, limit_setter: LimitSetter) -> None:
    """Restore all limits that were touched, even where some fail; raises the first `ActuatorError`."""
    problems: list[ActuatorError] = []
    for limit in lease.touched:
        try:
            limit_setter.set_limit(limit, getattr(lease.previous, limit))
        except ActuatorError as problem:
            problems.append(problem)
    if problems:
        raise problems[0]


def end_lease(lease: Lease, limit_setter: LimitSetter | None = None) -> str:
    """Restore settings and delete the lease file; nothing where the lease has ended or another one took its
    place.

    Returns the outcome in words. After a reboot the file is deleted and nothing is restored: an administrator
    may have set limits since.

    Raises `ActuatorError`; the file stays then, for a later try.
    """
    gpu = lease.reference.gpu
    with lease_file.lock_lease(gpu):
        now = lease_file.read_lease(lease_file.make_lease_path(gpu))
        if now is None or now.id != lease.id:
            return SETTINGS_RESTORED  # Whoever ended the lease restored them.
        outcome = (
            MACHINE_RESTARTED if now.predates_boot else SETTINGS_RESTORED if now.touched else NOTHING_SET
        )
        if outcome == SETTINGS_RESTORED:
            restore_settings(now, limit_setter or reopen_actuator(now.reference))
        lease_file.erase_lease(gpu)
        return outcome


def end_stale_lease(gpu: str) -> RestoreResult | None:
    """Restore what a governor that has ended left behind. The caller holds the `GovernorLock` of the GPU."""
    stale = lease_file.read_lease(lease_file.make_lease_path(gpu))
    if stale is None:
        return None
    return RestoreResult(stale.label, end_lease(stale))


def restore_all() -> list[RestoreResult]:
    """Restore every lease whose governor has ended."""
    return [_restore_lease(file.stem) for file in sorted(lease_file.find_lease_folder().glob("*.json"))]


def _restore_lease(gpu: str) -> RestoreResult:
    label = gpu
    try:
        lease = lease_file.read_lease(lease_file.make_lease_path(gpu))
        if lease is None:
            return RestoreResult(gpu)  # Its guard restored it first.
        label = lease.label
        holder = find_governor_pid(gpu)
        if holder is not None:
            return RestoreResult(label, problem=f"governed by process {holder}; end that one instead")
        return RestoreResult(label, end_lease(lease))
    except EkcError as problem:
        return RestoreResult(label, problem=str(problem))
