"""The guard: a small process that puts settings back when its governor dies or hangs.

`python -m ekc.devices.clocks.guard GPU LEASE_ID [GPU LEASE_ID ...]`, started by a `LeaseKeeper`. The governor
writes a byte to the guard's stdin every half second. The kernel closes that pipe when the governor ends, for
any reason. Where no byte comes for `SILENCE_TIMEOUT_S`, the governor hangs or was stopped. In both cases the
guard puts back every setting that is still leased.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ekc.devices.clocks import lease_file
from ekc.devices.clocks.lease_file import GUARD_READY, Lease
from ekc.devices.clocks.limits import LimitSetter
from ekc.devices.clocks.open import reopen_actuator
from ekc.devices.clocks.restore import end_lease, restore_settings
from ekc.errors import EkcError, RecordError
from ekc.processes.group_signals import EXTERNAL_SIGNALS

SILENCE_TIMEOUT_S = 2.5
RETRY_REMEDY = "it is tried again for a minute, without further lines; after that: ekc govern --restore"
RETRY_INTERVAL_S = 1.0
MAX_TRIES = 60
STDERR_S = 1.0
"""Seconds after the end of the governor in which the guard may write to its stderr."""
RESTORE_AGAIN_DELAY_S = 0.3
"""Seconds between two restorations: a call of the dead governor may still be under way to a daemon."""


@dataclass(frozen=True)
class _GuardedLease:
    """A lease of this guard; its actuator is opened at once, because drivers may be slow later."""

    gpu: str
    lease_id: str
    limit_setter: LimitSetter

    def read_lease(self) -> Lease | None:
        """The lease as its file has it now; None where the lease has ended."""
        now = lease_file.read_lease(lease_file.make_lease_path(self.gpu))
        return now if now is not None and now.id == self.lease_id else None


def main(arguments: list[str]) -> int:
    """Watch the governor, then put settings back. Exit status 1 where that failed to the end."""
    for number in EXTERNAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # A signal that ends the governor must not end its guard first.
    try:
        leases = [_open_guarded_lease(*pair) for pair in zip(arguments[::2], arguments[1::2], strict=True)]
    except EkcError as problem:
        _print_line(f"ekc guard: {problem}")
        return 1
    with contextlib.suppress(BrokenPipeError):  # The governor may be dead by now, and needs a guard then.
        os.write(sys.stdout.fileno(), GUARD_READY)
    why = _wait_for_governor_end(sys.stdin.fileno())
    threading.Thread(target=_release_stderr_late, daemon=True).start()
    return _restore_leases(leases, why)


def _open_guarded_lease(gpu: str, lease_id: str) -> _GuardedLease:
    lease = lease_file.read_lease(lease_file.make_lease_path(gpu))
    if lease is None:
        raise RecordError(f"{lease_file.make_lease_path(gpu)} does not exist; there is no lease to guard")
    return _GuardedLease(gpu, lease_id, reopen_actuator(lease.reference))


def _wait_for_governor_end(pipe: int) -> str:
    """Wait until the governor is gone or silent; returns "died" or "hangs"."""
    while select.select([pipe], [], [], SILENCE_TIMEOUT_S)[0]:
        if not os.read(pipe, 1 << 16):
            return "died"
    return "hangs"


def _release_stderr_late() -> None:
    """Let go of stderr after `STDERR_S`, also while a driver hangs."""
    time.sleep(STDERR_S)
    _print_line(f"ekc guard: previous settings are not back yet; {RETRY_REMEDY}")
    _release_stderr()


def _release_stderr() -> None:
    """Let go of stderr: who reads it, as in `2>&1 | tee log`, waits until every process has closed it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _restore_leases(leases: list[_GuardedLease], governor_end: str) -> int:
    """Put settings back, and repeat for a minute what fails; leases that ended normally are skipped."""
    for attempt in range(MAX_TRIES):
        if not any(lease_file.make_lease_path(x.gpu).exists() for x in leases):
            return 0
        _collect_problems(_restore_settings, leases)
        time.sleep(RESTORE_AGAIN_DELAY_S)
        problems = _collect_problems(lambda x: _end_lease(x, governor_end), leases)
        if not problems:
            return 0
        if attempt == 0:
            for problem in problems:
                _print_line(f"ekc guard: {problem}; {RETRY_REMEDY}")
            _release_stderr()
        time.sleep(RETRY_INTERVAL_S)
    return 1


def _collect_problems(action: Callable[[_GuardedLease], None], leases: list[_GuardedLease]) -> list[str]:
    """Call the action for each lease; returns the reasons of failures."""
    problems = []
    for one in leases:
        try:
            action(one)
        except EkcError as problem:
            problems.append(str(problem))
    return problems


def _restore_settings(guarded_lease: _GuardedLease) -> None:
    with lease_file.lock_lease(guarded_lease.gpu):
        lease = guarded_lease.read_lease()
        if lease is not None:
            restore_settings(lease, guarded_lease.limit_setter)


def _end_lease(guarded_lease: _GuardedLease, governor_end: str) -> None:
    lease = guarded_lease.read_lease()
    if lease is not None:
        outcome = end_lease(lease, guarded_lease.limit_setter)
        _print_line(f"ekc guard: governor {lease.governor} {governor_end}; {lease.label}: {outcome}")


def _print_line(line: str) -> None:
    """Print to stderr; the terminal may be gone."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
