"""Holds the leases of a governor: starts the guard, beats for it, and puts everything back at the end."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from ekc.devices.lease.leased import Leased
from ekc.devices.lease.record import READY
from ekc.devices.limits.settable import Settable, Settings
from ekc.errors import ActuatorError, EkcError
from ekc.forks import abandon_in_children, hold_forks

BEAT_S = 0.5
"""Between two signs of life; a guard waits for several times as long."""
STARTING_S = 20.0
"""A guard that has not opened its actuators by then never will: the driver does not answer."""


class Keeper:
    """Leases for all GPUs of one governor, from creation until `close` or the end of the `with` block.

    Raises `ActuatorError` where a GPU has a governor already or the guard cannot be started; nothing has
    been set then. `tell` gets one line for what happens later on.
    """

    def __init__(
        self,
        settables: Sequence[Settable],
        before: Settings | None = None,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._tell = tell
        self._over = threading.Event()
        self._process = os.getpid()
        self._guarding = threading.RLock()
        """Loop and heart both renew leases: while one does, the guard of the other is not there."""
        self._owed = False
        """Whether leases ended, and what had been set under them is not in force again."""
        self.actuators: list[Leased] = []
        try:
            # A child that is forked half way would hold locks and a pipe of which it does not know.
            with hold_forks():
                for settable in settables:
                    self.actuators.append(Leased(settable, before or Settings(), self._renew))
                self._guard = self._start_guard()
                abandon_in_children(self)
        except BaseException:
            self._end_leases()
            raise
        self._heart = threading.Thread(target=self._beat_on, name="ekc-lease", daemon=True)
        self._heart.start()

    @property
    def guard_pid(self) -> int:
        """Process id of the guard."""
        return self._guard.pid

    def close(self) -> list[str]:
        """Put everything back; why that failed, a line per GPU where it did. A second call does nothing, nor
        one in a process that was forked meanwhile."""
        if self._over.is_set() or os.getpid() != self._process:
            return []
        self._over.set()
        self._heart.join()
        problems = self._end_leases()
        self._dismiss(wait=not problems)  # A guard with something left to put back goes on trying alone.
        return problems

    def abandon(self) -> None:
        """Leave the lease to the process that we were forked from; no lock is safe to take here. With its
        lock and its pipe open here it would outlive that process."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        for actuator in self.actuators:
            actuator.abandon()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for line in self.close():
            self._say(line)

    def _say(self, line: str) -> None:
        """Whoever listens may raise (`warnings.warn` where warnings are errors): the lease goes on."""
        with contextlib.suppress(Exception):
            self._tell(line)

    def _end_leases(self) -> list[str]:
        problems = []
        for actuator in self.actuators:
            try:
                actuator.end()
            except EkcError as problem:
                problems.append(
                    f"{problem}; its guard tries on for a minute, after that: ekc govern --restore"
                )
        return problems

    def _start_guard(self) -> subprocess.Popen[bytes]:
        """Of its own session, so that what a terminal sends to us does not reach it; back when it watches."""
        leases = [word for x in self.actuators for word in (x.lease.reference.gpu, x.lease.id)]
        try:
            guard = subprocess.Popen(
                [sys.executable, "-m", "ekc.devices.lease", *leases],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,  # No lock of a buffer, which another thread may hold while somebody forks.
                start_new_session=True,
            )
        except OSError as problem:
            reason = problem.strerror or type(problem).__name__
            raise ActuatorError(
                f"the guard process did not start ({reason}), so nothing may be set"
            ) from None
        assert guard.stdin is not None
        assert guard.stdout is not None
        with guard.stdout:
            answers = select.select([guard.stdout], [], [], STARTING_S)[0]
            if not answers or guard.stdout.readline() != READY:
                guard.kill()
                raise ActuatorError("the guard process did not start, so nothing may be set")
        os.set_blocking(guard.stdin.fileno(), False)
        return guard

    def _beat_on(self) -> None:
        told = None
        while not self._over.wait(BEAT_S):
            try:
                self._beat()
                told = None
            except Exception as problem:  # Whatever it is: without a heart the guard takes us for dead.
                if str(problem) != told:
                    told = str(problem)
                    self._say(f"{told}; it is tried again until it is done")

    def _beat(self) -> None:
        with self._guarding:
            if not self._held():
                self._take_again()
            elif self._guard.poll() is not None:
                self._new_guard()
                self._say("the guard was gone; a new one is there")
            self._live()
            for actuator in self.actuators:
                actuator.let_go()
            self._repeat()

    def _live(self) -> None:
        """A sign of it for the guard."""
        assert self._guard.stdin is not None
        try:
            os.write(self._guard.stdin.fileno(), b".")
        except (BlockingIOError, BrokenPipeError):
            self._guard.kill()  # It has not read for hours, or died just now; the next beat starts another.

    def _held(self) -> bool:
        return all(x.held() for x in self.actuators)

    def _renew(self) -> None:
        """For the loop, which is about to set something."""
        with self._guarding:
            if not self._held():  # Else the heart was faster.
                self._take_again()
            self._repeat()

    def _take_again(self) -> None:
        """New leases, and a guard for them; what was set under the old ones is owed from here on."""
        self._owed = True
        for actuator in self.actuators:
            actuator.take_again()
        self._new_guard()

    def _repeat(self) -> None:
        """What is owed, until all of it was done: leases that are held again do not tell that it was not."""
        if not self._owed:
            return
        for actuator in self.actuators:
            actuator.repeat()
        self._owed = False
        self._say("the governor was stopped for a while and its guard put settings back; set again")

    def _new_guard(self) -> None:
        self._dismiss()
        with hold_forks():
            self._guard = self._start_guard()

    def _dismiss(self, wait: bool = True) -> None:
        """A guard whose leases are over leaves when its pipe closes."""
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        if wait:
            self._guard.wait()
