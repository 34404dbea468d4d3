"""Restoring the settings that leases remember: this user's own, and as root those of all users."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from ekc.devices.clocks import lease_file
from ekc.devices.clocks.cap_records import read_recorded_cap_w, record_caps
from ekc.devices.clocks.foreign_lease import describe_verdicts, is_cap_of_another, judge_foreign_lease
from ekc.devices.clocks.lease_file import GovernorLock, GovernorProcess, Lease, find_governor
from ekc.devices.clocks.lease_registry import FoundLease, erase_found_lease, find_leases
from ekc.devices.clocks.limits import LIMIT_NAMES, LimitSetter, Settings, format_settings
from ekc.devices.clocks.open import choose_actuator, reopen_actuator
from ekc.errors import ActuatorError, EkcError, RecordError

SETTINGS_RESTORED = "previous settings are back"
NOTHING_SET = "nothing had been set"
MACHINE_RESTARTED = "the machine has been started since; nothing put back"
HEARTBEAT_TIMEOUT_S = 5.0
"""Seconds without a heartbeat in the lease after which its governor, and its guard, do not run."""
LOCK_WAIT_S = 1.0
"""Seconds to wait for another process that restores the same GPU."""
MAX_REFUSED_LINES = 20


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
    kept = reading is not None and is_cap_of_another(lease, reading)
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


def end_lease(lease: Lease, limit_setter: LimitSetter | None = None) -> str:
    """Restore settings and delete the lease file; nothing where the lease has ended or another one took its
    place. The caps that `lease` says governors may have set count, not those of its file.

    Returns the outcome in words. After a reboot the file is deleted and nothing is restored: an administrator
    may have set limits since.

    Raises `ActuatorError`; the file stays then, for a later try.
    """
    gpu = lease.reference.gpu
    with lease_file.lock_lease(gpu):
        now = lease_file.read_lease(lease_file.make_lease_path(gpu))
        if now is None or now.id != lease.id:
            return SETTINGS_RESTORED  # Whoever ended the lease restored them.
        outcome = _restore_touched(replace(now, possible_caps_w=lease.possible_caps_w), limit_setter)
        lease_file.erase_lease(gpu)
        return outcome


def _restore_touched(lease: Lease, limit_setter: LimitSetter | None = None) -> str:
    if lease.predates_boot:
        return MACHINE_RESTARTED
    if not lease.touched:
        return NOTHING_SET
    return restore_settings(lease, limit_setter or reopen_actuator(lease.reference))


def end_stale_leases(gpu: str) -> list[RestoreResult]:
    """Restore what governors that have ended left on a GPU, as root those of all users, the latest first. The
    caller holds the `GovernorLock` of the GPU. Raises `EkcError` where the lease in the folder of this
    process cannot be restored."""
    found = find_leases(gpu)
    results = []
    for one in found:
        if not _is_in_own_folder(one):
            results.append(_restore_found(one, found))
        elif one.lease is None:
            raise RecordError(f"{one.label}: {one.problem}")
        else:
            results.append(RestoreResult(one.lease.label, _end_own_lease(one, one.lease, found)))
    return results


def restore_all() -> list[RestoreResult]:
    """Restore every lease whose governor has ended or does not run: this user's, and as root all."""
    found = find_leases()
    results = [x for one in found if one.gpu and (x := _restore_unless_governed(one, found)) is not None]
    refused = [RestoreResult(x.label, problem=x.problem) for x in found if not x.gpu]
    results += refused[:MAX_REFUSED_LINES]
    if len(refused) > MAX_REFUSED_LINES:
        more = len(refused) - MAX_REFUSED_LINES
        results.append(RestoreResult("more", problem=f"{more} more files and folders were not looked into"))
    if os.geteuid() == 0:
        with suppress(OSError):  # Without a record, the board's default is the bound.
            record_caps({x.gpu for x in find_leases()})
    return results


def _restore_unless_governed(one: FoundLease, found: Sequence[FoundLease]) -> RestoreResult | None:
    """Restore a lease unless its governor runs; None where another user's governor runs as it should."""
    is_entitled = one.is_own or os.geteuid() == 0
    governor = find_governor(one.gpu)
    if governor is not None and _is_its_governor(one, governor):
        silent_s = _compute_silent_s(one, governor)
        if silent_s is None:
            return _report_running(one, governor)
        if is_entitled:
            return _restore_suspended(one, governor, silent_s, found)
    if not is_entitled:
        return _restore_found(one, found)
    lock = _lock_gpu(one)
    if lock is None:
        return _report_running(one, governor or find_governor(one.gpu) or GovernorProcess(0, 0))
    with closing(lock):
        return _restore_found(one, found)


def _report_running(one: FoundLease, governor: GovernorProcess) -> RestoreResult | None:
    """A line for a GPU that a process governs now; None for what is no concern of this user."""
    if _is_its_governor(one, governor) and not _is_in_own_folder(one):
        return None
    if one.is_own:
        return RestoreResult(
            _make_label(one), problem=f"governed by process {governor.pid}; end that one instead"
        )
    now = f"process {governor.pid} of user {governor.uid} governs the GPU now"
    return RestoreResult(one.label, problem=f"left until it ends, since {now}")


def _restore_suspended(
    one: FoundLease, governor: GovernorProcess, silent_s: float, found: Sequence[FoundLease]
) -> RestoreResult:
    """Restore the lease of a governor that does not run. It takes the lease again when it goes on."""
    result = _restore_found(one, found)
    if result.problem is not None or one.lease is None:
        return result
    state = f"governor {governor.pid} is suspended, without a heartbeat for {silent_s:.0f} s"
    words = f"{state}, and had set {_describe_settings(one.lease)}; {result.outcome} until it goes on"
    return RestoreResult(result.label, words)


def _restore_found(one: FoundLease, found: Sequence[FoundLease]) -> RestoreResult:
    """Restore a lease whose governor does not set anything now. `found`: all leases of that GPU."""
    label = _make_label(one)
    try:
        if one.lease is None:
            return RestoreResult(label, problem=one.problem)
        if one.is_own:
            return RestoreResult(label, _end_own_lease(one, one.lease, found))
        if os.geteuid() != 0:
            what = _describe_settings(one.lease)
            return RestoreResult(
                label,
                problem=f"a governor left {what}; only its user or root can end that: run ekc govern "
                "--restore as root",
            )
        return _restore_foreign(one, one.lease, found)
    except EkcError as problem:
        return RestoreResult(label, problem=str(problem))


def _end_own_lease(one: FoundLease, lease: Lease, found: Sequence[FoundLease]) -> str:
    lease = _add_caps_of_others(one.gpu, lease, found)
    if _is_in_own_folder(one):
        return end_lease(lease)
    outcome = _restore_touched(lease)
    erase_found_lease(one)
    return outcome


def _add_caps_of_others(gpu: str, lease: Lease, found: Sequence[FoundLease]) -> Lease:
    """The lease with the caps that other governors of the GPU set: none of them is an administrator's."""
    if lease.possible_caps_w is None:
        return lease
    caps = [x.lease.possible_caps_w or () for x in found if x.gpu == gpu and x.lease is not None]
    return replace(lease, possible_caps_w=tuple({*lease.possible_caps_w, *chain.from_iterable(caps)}))


def _restore_foreign(one: FoundLease, lease: Lease, found: Sequence[FoundLease]) -> RestoreResult:
    """As root, restore what may be restored of a lease of another user."""
    if not lease.boot:
        return RestoreResult(one.label, problem="it names no start of the machine; nothing put back")
    if lease.predates_boot or not lease.touched:
        erase_found_lease(one)
        return RestoreResult(one.label, MACHINE_RESTARTED if lease.predates_boot else NOTHING_SET)
    # Not through the daemon that the lease names: that may lead anywhere.
    limit_setter = choose_actuator("auto", one.gpu)
    records = _list_records(one.gpu, found)
    verdicts = judge_foreign_lease(lease, records, limit_setter.gears(), limit_setter.read_board())
    for verdict in verdicts:
        if verdict.action == "put back":
            limit_setter.set_limit(verdict.limit, verdict.value)
    words = f"{limit_setter.label}: {describe_verdicts(verdicts)}"
    if any(x.action == "left" for x in verdicts):
        remedy = f"set it by hand, or restore as user {one.folder.owner}"
        return RestoreResult(one.label, problem=f"{words}; {remedy}")
    erase_found_lease(one)
    return RestoreResult(one.label, words)


def _list_records(gpu: str, found: Sequence[FoundLease]) -> list[Settings]:
    """Limits of a GPU that root knows to have been in force before a governor set others."""
    own = [x.lease for x in found if x.is_own and x.gpu == gpu and x.lease is not None]
    known = [x.previous for x in own if not x.predates_boot]
    return [*known, Settings(power_w=read_recorded_cap_w(gpu))]


def _describe_settings(lease: Lease) -> str:
    """Settings of a governor; a lease of an earlier version does not say the values."""
    names = ", ".join(LIMIT_NAMES[x] for x in lease.touched) or "nothing"
    return names if lease.possible_caps_w is None else format_settings(lease.in_force)


def _make_label(one: FoundLease) -> str:
    """The label of this user's own lease; the place of another's, which is no text of that user."""
    return one.lease.label if one.is_own and one.lease is not None else one.label


def _is_in_own_folder(one: FoundLease) -> bool:
    """Whether a lease is in the folder in which this process keeps its own."""
    return one.is_own and one.folder.path == lease_file.find_lease_folder().absolute()


def _is_its_governor(one: FoundLease, governor: GovernorProcess) -> bool:
    """Whether the process that holds the GPU is the governor of the lease, and not one of another user."""
    if one.lease is None:
        return False
    return (governor.pid, governor.uid) == (one.lease.governor, one.folder.owner)


def _compute_silent_s(one: FoundLease, governor: GovernorProcess) -> float | None:
    """Seconds since the last heartbeat of a governor that is stopped or frozen; None for one that runs."""
    silent_s = max(0.0, time.time() - one.changed_s)
    if _is_stopped(governor.pid):
        return silent_s
    # Earlier versions of ekc write no heartbeat into the lease.
    has_heartbeat = one.lease is not None and one.lease.possible_caps_w is not None
    return silent_s if has_heartbeat and silent_s > HEARTBEAT_TIMEOUT_S else None


def _is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (OSError, IndexError):
        return False


def _lock_gpu(one: FoundLease) -> GovernorLock | None:
    """Keep governors away from the GPU of a lease; None where one is there already."""
    end_s = time.monotonic() + LOCK_WAIT_S
    while True:
        with suppress(ActuatorError):
            return GovernorLock(one.gpu, one.label)
        if time.monotonic() > end_s:
            return None
        time.sleep(0.05)
