"""Putting back what was in force before."""

from __future__ import annotations

from dataclasses import dataclass

from ekc.devices.lease import record
from ekc.devices.lease.one import governing
from ekc.devices.lease.record import Lease
from ekc.devices.limits import Settable, reopened
from ekc.errors import ActuatorError, EkcError

BACK = "previous settings are back"
UNTOUCHED = "nothing had been set"
OUTLIVED = "the machine has been started since; nothing put back"


@dataclass(frozen=True)
class Restored:
    """What became of one lease; `problem` is why it could not be put back."""

    label: str
    done: str = BACK
    problem: str | None = None

    def __str__(self) -> str:
        return f"{self.label}: {self.problem or self.done}"


def put_back(lease: Lease, settable: Settable) -> None:
    """All that was touched, even where some of it fails. Raises `ActuatorError` with the first reason."""
    problems: list[ActuatorError] = []
    for limit in lease.touched:
        try:
            settable.put(limit, getattr(lease.previous, limit))
        except ActuatorError as problem:
            problems.append(problem)
    if problems:
        raise problems[0]


def end(lease: Lease, settable: Settable | None = None) -> str:
    """Put back, and erase the file; nothing where another lease has taken its place, or it ended already.

    Returns what was done, for people. Of a lease from before a reboot only the file is erased: an
    administrator may have set limits since.

    Raises `ActuatorError`; the file stays then, for a later try.
    """
    gpu = lease.reference.gpu
    with record.exclusive(gpu):
        now = record.read(record.path(gpu))
        if now is None or now.id != lease.id:
            return BACK  # By whoever ended it.
        done = OUTLIVED if now.outlived else BACK if now.touched else UNTOUCHED
        if done == BACK:
            put_back(now, settable or reopened(now.reference))
        record.erase(gpu)
        return done


def end_stale(gpu: str) -> Restored | None:
    """What a governor that is no more has left behind, put back. Call it holding the GPU's `OneGovernor`."""
    stale = record.read(record.path(gpu))
    if stale is None:
        return None
    return Restored(stale.label, end(stale))


def restore_all() -> list[Restored]:
    """Every lease that no governor holds any more."""
    return [_restored(file.stem) for file in sorted(record.folder().glob("*.json"))]


def _restored(gpu: str) -> Restored:
    label = gpu
    try:
        lease = record.read(record.path(gpu))
        if lease is None:
            return Restored(gpu)  # Its guard was faster.
        label = lease.label
        holder = governing(gpu)
        if holder is not None:
            return Restored(label, problem=f"governed by process {holder}; end that one instead")
        return Restored(label, end(lease))
    except EkcError as problem:
        return Restored(label, problem=str(problem))
