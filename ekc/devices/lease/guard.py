"""The guard: a small process that puts settings back when its governor dies or hangs.

`python -m ekc.devices.lease GPU ID [GPU ID ...]`. The governor writes a byte to our stdin every
now and then. The kernel closes that pipe when the governor ends, however it ends; and where no byte
comes for `SILENCE_S`, the governor hangs or was stopped. Either way what is still leased is put back.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from ekc.devices.lease import record
from ekc.devices.lease.record import READY, Lease
from ekc.devices.lease.restore import end, put_back
from ekc.devices.lease.signals import SENT
from ekc.devices.limits import Settable, reopened
from ekc.errors import EkcError, RecordError

SILENCE_S = 2.5
RETRY_S = 1.0
TRIES = 60
AGAIN_S = 0.3
"""A call of the dead may still be on its way to a daemon: settings are put back twice, this far apart."""


@dataclass(frozen=True)
class _Held:
    """A lease that we guard; its actuator is opened before there is need, since drivers may be slow."""

    gpu: str
    id: str
    settable: Settable

    def lease(self) -> Lease | None:
        """As the file has it now; None where it ended."""
        now = record.read(record.path(self.gpu))
        return now if now is not None and now.id == self.id else None


def main(arguments: list[str]) -> int:
    """Watch, then put back. Status 1 where that failed to the end."""
    for number in SENT:
        signal.signal(number, signal.SIG_IGN)  # Whatever ends the governor must not end us first.
    try:
        held = [_held(*pair) for pair in zip(arguments[::2], arguments[1::2], strict=True)]
    except EkcError as problem:
        _say(f"ekc guard: {problem}")
        return 1
    with contextlib.suppress(BrokenPipeError):  # A governor may be dead by now: all the more reason to go on.
        os.write(sys.stdout.fileno(), READY)
    why = _watch(sys.stdin.fileno())
    return _give_back(held, why)


def _held(gpu: str, lease_id: str) -> _Held:
    lease = record.read(record.path(gpu))
    if lease is None:
        raise RecordError(f"{record.path(gpu)} is not there to be guarded")
    return _Held(gpu, lease_id, reopened(lease.reference))


def _watch(pipe: int) -> str:
    """Return when the governor is gone or silent, and which."""
    while select.select([pipe], [], [], SILENCE_S)[0]:
        if not os.read(pipe, 1 << 16):
            return "died"
    return "hangs"


def _give_back(held: list[_Held], why: str) -> int:
    """What fails is tried again for a minute; leases that ended as they should are passed over."""
    problems: list[str] = []
    for _ in range(TRIES):
        if not any(record.path(x.gpu).exists() for x in held):
            return 0
        _problems(_put_back, held)
        time.sleep(AGAIN_S)
        problems = _problems(lambda x: _end(x, why), held)
        if not problems:
            return 0
        time.sleep(RETRY_S)
    for problem in problems:
        _say(f"ekc guard: {problem}; when that is mended: ekc govern --restore")
    return 1


def _problems(act: Callable[[_Held], None], held: list[_Held]) -> list[str]:
    """Do it for each; why it failed where it did."""
    problems = []
    for one in held:
        try:
            act(one)
        except EkcError as problem:
            problems.append(str(problem))
    return problems


def _put_back(held: _Held) -> None:
    with record.exclusive(held.gpu):
        lease = held.lease()
        if lease is not None:
            put_back(lease, held.settable)


def _end(held: _Held, why: str) -> None:
    lease = held.lease()
    if lease is not None:
        done = end(lease, held.settable)
        _say(f"ekc guard: governor {lease.governor} {why}; {lease.label}: {done}")


def _say(line: str) -> None:
    """The terminal may be gone."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        return
