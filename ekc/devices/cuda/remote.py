"""The parent's end of a worker: asks with a time limit, buries the dead, hires anew.

What goes wrong is one `DeviceError` for the request that met it: the driver's own words, "hung", or how the
process ended. The next request gets a fresh worker.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

from ekc.devices.cuda.messages import Fault, Taking, Work
from ekc.errors import DeviceError
from ekc.forks import abandon_in_children, hold_forks

GRACE_S = 10.0
"""For a killed worker to end: the driver first takes the context down."""


@dataclass(frozen=True)
class Patience:
    """Seconds to wait for an answer before the worker counts as hung."""

    start: float = 60.0
    """To import and to load the driver; added to the first request."""
    answer: float = 60.0
    """Making the context, loading and a first call of a kernel; the samples have a time of their own."""
    filled_bytes_per_s: float = 50e6
    """Inputs drawn and sent up, and outputs looked at, in bytes a second on a host that compiles on all its
    cores: time for them comes on top."""
    stop: float = 20.0
    """From `Stop` to the answer, beside what is queued."""

    def of(self, request: Any) -> float:
        """For the answer to a request."""
        work: Work | None = getattr(request, "work", None)
        moved = getattr(request, "moved_bytes", work.input_bytes if work is not None else 0)
        return self.answer + moved / self.filled_bytes_per_s


class Hand(Protocol):
    """A worker process."""

    connection: Connection

    def kill(self) -> None:
        """End it by force."""

    def ended(self, seconds: float) -> int | None:
        """Its exit status (minus the signal that killed it), or None if it runs on after so long."""

    def last_words(self) -> str:
        """The last line it wrote to stderr."""

    def abandon(self) -> None:
        """In a forked child: let go of its pipes, and leave it to our parent."""


class Child:
    """`python -m` in a session of its own: neither Ctrl-C nor the caller's `__main__` reaches it."""

    def __init__(self, index: int, module: str = "ekc.devices.cuda.worker") -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self.connection, theirs = Pipe()
        far, self._lifeline = os.pipe()
        descriptors = (theirs.fileno(), far)
        try:
            self._process = subprocess.Popen(
                # It imports what we would: without -P, what lies in the folder we run in came first.
                [sys.executable, "-P", "-m", module, str(index), *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
                start_new_session=True,
            )
        except OSError:
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(far)

    def kill(self) -> None:
        """See `Hand`."""
        self._process.kill()

    def ended(self, seconds: float) -> int | None:
        """See `Hand`; what belongs to an ended process is let go."""
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self._let_go()
        return status

    def abandon(self) -> None:
        """See `Hand`."""
        self.connection.close()
        self._let_go()

    def _let_go(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def last_words(self) -> str:
        """See `Hand`."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


class Remote:
    """One GPU's worker, hired when first asked."""

    def __init__(self, name: str, hire: Callable[[], Hand], patience: Patience | None = None) -> None:
        self.name, self._hire, self.patience = name, hire, patience or Patience()
        self._hands: list[Hand] = []
        self._limit = 0.0
        self._due = False
        """Whether an answer has been asked for and not fetched."""
        # Not a method: that would keep this object alive, and the worker with it.
        self._finalizer = weakref.finalize(self, _dismiss, self._hands)
        abandon_in_children(self)

    def ask(self, request: Any, seconds: float | None = None) -> Any:
        """The reply. Raises `DeviceError` when the driver refuses, the worker hangs or dies."""
        self.post(request, seconds)
        return self.reply()

    def post(self, request: Any, seconds: float | None = None) -> None:
        """Send a request, whose reply is to be fetched before the next; `seconds` are for that reply."""
        self._limit = self.patience.of(request) if seconds is None else seconds
        if self._due:
            # Ctrl-C came before that answer was fetched: it must not be taken for the one to this question.
            _dismiss(self._hands)
        if not self._hands:
            with (
                hold_forks()
            ):  # With its pipes open in a child that knows nothing of it, it would outlive us.
                self._hands.append(self._hired())
            self._limit += self.patience.start
        self._due = True
        # A worker that ended since can still be read: what it said last is the reason.
        with suppress(OSError):
            self._hands[0].connection.send(request)

    def reply(self) -> Any:
        """To what was posted; see `ask`."""
        try:
            reply = self._reply(self._hands[0], self._limit)
        except BaseException:
            _dismiss(self._hands)
            raise
        self._due = False
        return reply

    def close(self) -> None:
        """End the worker."""
        _dismiss(self._hands)

    def abandon(self) -> None:
        """In a forked child: the worker is its parent's; who asks here gets another. With its pipes open here
        it would outlive that parent."""
        self._due = False
        while self._hands:
            self._hands.pop().abandon()

    def _hired(self) -> Hand:
        try:
            return self._hire()
        except OSError as problem:
            raise DeviceError(
                f"{self.name}: its worker process cannot be started ({problem.strerror or problem}); "
                "end other processes, or see ulimit -u and ulimit -n"
            ) from problem

    def _reply(self, hand: Hand, limit: float) -> Any:
        try:
            reply = self._received(hand, limit)
            if isinstance(reply, Taking):
                reply = self._received(hand, reply.seconds + self.patience.answer)
        except (EOFError, OSError):
            status = hand.ended(GRACE_S)
            words = hand.last_words()
            told = f"; its last words: {words}" if words else ""
            raise DeviceError(f"{self.name}: the worker {_ending(status)}{told}") from None
        if isinstance(reply, Fault):
            raise DeviceError(f"{self.name}: {reply.reason}")
        return reply

    def _received(self, hand: Hand, limit: float) -> Any:
        if not hand.connection.poll(limit):
            raise DeviceError(f"{self.name} hung: no answer within {limit:.4g} s; its worker was killed")
        return hand.connection.recv()


def _dismiss(hands: list[Hand]) -> None:
    while hands:
        hand = hands.pop()
        hand.connection.close()
        hand.kill()
        hand.ended(GRACE_S)


def _ending(status: int | None) -> str:
    if status is None:
        return "went silent"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
