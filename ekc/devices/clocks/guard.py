"""The guard: a small process that puts settings back when its governor dies or hangs.

`python -m ekc.devices.clocks.guard NUMBER`, started by a `LeaseKeeper` that has leases of so many GPUs. The
governor writes lines to the guard's stdin: each lease at the beginning and whenever one changes, and an empty
line every half second. The kernel closes that pipe when the governor ends, for any reason. Where no line
comes for `SILENCE_TIMEOUT_S`, the governor hangs or was stopped. In both cases the guard puts back every
setting that is still leased, by the leases that it was sent: a lease file may be damaged.
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
from ekc.devices.clocks.lease_file import GUARD_READY, Lease, parse_lease
from ekc.devices.clocks.limits import LimitSetter
from ekc.devices.clocks.open import reopen_actuator
from ekc.devices.clocks.restore import NOTHING_SET, restore_settings
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


def main(arguments: list[str]) -> int:
    """Watch the governor, then put settings back. Exit status 1 where that failed to the end."""
    for number in EXTERNAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # A signal that ends the governor must not end its guard first.
    inbox = _Inbox(sys.stdin.fileno())
    try:
        while len(inbox.leases) < int(arguments[0]):
            if not inbox.read():
                return 1
        # Opened at once, because drivers may be slow later.
        setters = {gpu: reopen_actuator(lease.reference) for gpu, lease in inbox.leases.items()}
    except (EkcError, ValueError) as problem:
        _print_line(f"ekc guard: {problem}")
        return 1
    with contextlib.suppress(BrokenPipeError):  # The governor may be dead by now, and needs a guard then.
        os.write(sys.stdout.fileno(), GUARD_READY)
    governor_end, was_stopped = _wait_for_governor_end(inbox)
    threading.Thread(target=_release_stderr_late, daemon=True).start()
    leases = [_GuardedLease(lease, setters[gpu]) for gpu, lease in inbox.leases.items()]
    return _restore_leases(leases, governor_end, was_stopped)


class _Inbox:
    """The pipe of the governor, and the last lease of each GPU that came through it."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self.leases: dict[str, Lease] = {}
        self._rest = b""

    def read(self) -> bool:
        """Read what has come, or wait for it; False at the end of the pipe. Raises `ValueError` for a line
        that is no lease."""
        received = os.read(self.pipe, 1 << 16)
        *lines, self._rest = (self._rest + received).split(b"\n")
        for lease in (parse_lease(line) for line in lines if line):
            self.leases[lease.reference.gpu] = lease
        return bool(received)


@dataclass(frozen=True)
class _GuardedLease:
    """A lease to end, and the actuator for that."""

    lease: Lease
    limit_setter: LimitSetter

    def has_ended(self, is_gone_enough: bool) -> bool:
        """Whether another process has ended the lease: it took another, or deleted the file, which means that
        only where `is_gone_enough`. A damaged file says nothing."""
        try:
            now = lease_file.read_lease(lease_file.make_lease_path(self.lease.reference.gpu))
        except EkcError:
            return False
        return is_gone_enough if now is None else now.id != self.lease.id


def _wait_for_governor_end(inbox: _Inbox) -> tuple[str, bool]:
    """Wait until the governor is gone or silent; returns "died" or "hangs", and whether this process was
    stopped in between: others may have ended its leases then."""
    was_stopped = False
    while True:
        began_s = time.monotonic()
        is_silent = not select.select([inbox.pipe], [], [], SILENCE_TIMEOUT_S)[0]
        was_stopped |= time.monotonic() - began_s > 2 * SILENCE_TIMEOUT_S
        if is_silent:
            return "hangs", was_stopped
        if not inbox.read():
            return "died", was_stopped


def _release_stderr_late() -> None:
    """Let go of stderr after `STDERR_S`, also while a driver hangs."""
    time.sleep(STDERR_S)
    _print_line(f"ekc guard: previous settings are not back yet; {RETRY_REMEDY}")
    _release_stderr()


def _release_stderr() -> None:
    """Let go of stderr: who reads it, as in `2>&1 | tee log`, waits until every process has closed it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _restore_leases(leases: list[_GuardedLease], governor_end: str, was_stopped: bool) -> int:
    """Put settings back, and repeat for a minute what fails; leases that ended normally are skipped."""
    for attempt in range(MAX_TRIES):
        leases = [x for x in leases if not x.has_ended(was_stopped or attempt > 0 or not x.lease.touched)]
        if not leases:
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


def _restore_settings(guarded: _GuardedLease) -> None:
    with lease_file.lock_lease(guarded.lease.reference.gpu):
        restore_settings(guarded.lease, guarded.limit_setter)


def _end_lease(guarded: _GuardedLease, governor_end: str) -> None:
    lease, outcome = guarded.lease, NOTHING_SET
    with lease_file.lock_lease(lease.reference.gpu):
        if guarded.has_ended(is_gone_enough=False):
            return
        if lease.touched:
            outcome = restore_settings(lease, guarded.limit_setter)
        try:
            lease_file.erase_lease(lease.reference.gpu)
        except RecordError as problem:  # Nothing is left that could be tried again.
            outcome = str(problem)
    _print_line(f"ekc guard: governor {lease.governor} {governor_end}; {lease.label}: {outcome}")


def _print_line(line: str) -> None:
    """Print to stderr; the terminal may be gone."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
