"""The job: a command that we start, or a process that runs already. It is never changed or stopped by us."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from ekc.devices.lease.signals import SENT
from ekc.errors import InvalidInput
from ekc.governor.live.witness import Witness

Handler = Callable[[int, FrameType | None], Any] | int | None
"""What `signal.signal` takes and returns."""
LOOK_S = 0.2
KILLED = 128
"""And the number of the signal, as shells have it."""
SPREADING_S = 0.05
"""Within which a signal to many processes reaches all of them."""
STOPPING_S = 1.0
"""For a command that does something before it stops."""
ENDING = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "XCPU")
"""Signals by which we leave a process that is not ours."""
BORN_S = 1.0
"""A process shows no environment while it is being started; one that has none is waited for so long."""


class Job(Protocol):
    """What is governed, until it ends."""

    pid: int

    def variable(self, name: str) -> str:
        """Of its environment; empty where there is none, or it may not be read."""
        ...

    def running(self) -> bool:
        """Whether it is still there."""
        ...

    def wait(self) -> int:
        """Until it ends, or we leave it; the exit status to end with."""
        ...

    def leave(self) -> None:
        """There is nothing to govern: a process that is not ours is not waited for any longer."""
        ...

    def release(self) -> None:
        """After all is done: signals do again what they did before."""
        ...


class Command:
    """A command, started by us with our own terminal, process group, files and environment.

    A signal sent to us alone is passed on; one sent to the group has reached it already. Where a terminal
    stops it, we stop too. Raises `InvalidInput` where it cannot be started. To be made, waited for and
    released in the main thread.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._before: dict[int, Handler] = {}
        self._arrived: list[int] = []
        """Signals about which nothing was decided yet."""
        self._deciding = False
        self._started = False
        # Before the command starts: a signal right after would end us, and where we are a terminal's first
        # process, all on it. What is ignored, as nohup has it, is left so until the command has inherited it.
        self._handle(ignored=False)
        self._witness = Witness()
        try:
            # Files that were opened for the command, as a shell's <(...) does, stay open.
            self._process = subprocess.Popen(list(words), close_fds=False)
        except (OSError, ValueError) as problem:
            self.release()
            reason = getattr(problem, "strerror", None) or str(problem)
            raise InvalidInput(f"cannot run {words[0]!r}: {reason}") from problem
        self.pid = self._process.pid
        self._handle(ignored=True)
        # Where the terminal stops whoever writes to it from the background, what we write must not.
        self._before[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        self._pass_on_early()
        self._started = True
        self._decide_arrived()

    def _handle(self, ignored: bool) -> None:
        """Take over the signals that are ignored so far, or the others."""
        for number in SENT:
            if number not in self._before and (signal.getsignal(number) == signal.SIG_IGN) == ignored:
                self._before[number] = signal.signal(number, self._arrive)

    def release(self) -> None:
        """Signals are ours again, as they were before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        self._witness.close()

    def variable(self, name: str) -> str:
        """It was given ours."""
        return os.environ.get(name, "")

    def running(self) -> bool:
        """From any thread, while the main one waits."""
        return self._process.returncode is None

    def wait(self) -> int:
        """The command's own exit status; 128 and the signal where one ended it."""
        self._until_ended()
        status = self._process.wait()
        return KILLED - status if status < 0 else status

    def _until_ended(self) -> None:
        """In short waits: Python handles a signal between two steps of its own, so one that comes just before
        a wait without end would be passed on when the command has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:  # A sandbox that does not know the call; asking again and again costs more.
            while self._process.poll() is None:
                time.sleep(LOOK_S)
            return
        while not _ended(descriptor, LOOK_S):
            if self._stopped() == signal.SIGTTOU:
                _stop_here()
        os.close(descriptor)

    def leave(self) -> None:
        """A command of ours is waited for all the same."""

    def _pass_on_early(self) -> None:
        """A signal from before the command could handle it has ended it, or was sent before it was there."""
        while self._arrived:
            number = self._arrived.pop(0)
            self._witness.forget(number)
            self._process.send_signal(number)

    def _arrive(self, number: int, frame: FrameType | None) -> None:
        """One that comes again before it was decided about is the same: `timeout` sends to its child first,
        then to the group."""
        if number not in self._arrived:
            self._arrived.append(number)
        if self._started and not self._deciding:
            self._decide_arrived()

    def _decide_arrived(self) -> None:
        """Whether signals have to be passed on, once they have reached whom else they were sent to."""
        self._deciding = True
        while self._arrived:
            time.sleep(SPREADING_S)
            number = self._arrived.pop(0)
            if not self._witness.saw(number):
                self._process.send_signal(number)
            if number == signal.SIGTSTP:
                self._stop_along()
        self._deciding = False

    def _stop_along(self) -> None:
        """When the command stops; it may have other plans. The shell sees us, and continues us both."""
        latest = time.monotonic() + STOPPING_S
        while time.monotonic() < latest and self._process.returncode is None:
            if signal.SIGCONT in self._arrived:
                return
            if self._stopped() is not None:
                _stop_here()
                return
            time.sleep(SPREADING_S)

    def _stopped(self) -> int | None:
        """The signal that has stopped the command since this was last asked."""
        try:
            seen = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
        except ChildProcessError:
            return None
        return None if seen is None else seen.si_status


def _stop_here() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


class Attached:
    """A process that runs already; we leave when it ends, or on a signal that ends a program, such as that of
    Ctrl-C, and it goes on without us.

    Raises `InvalidInput` where there is no such process. To be made, waited for and released in the main
    thread.
    """

    def __init__(self, pid: int) -> None:
        try:
            self._descriptor = os.pidfd_open(pid)
        except OSError as problem:
            raise InvalidInput(f"--pid {pid}: {problem.strerror}; see ps for the jobs that run") from problem
        self.pid = pid
        self._left = threading.Event()
        ending = [signal.Signals[f"SIG{name}"] for name in ENDING]
        numbers = [
            n for n in ending if signal.getsignal(n) != signal.SIG_IGN
        ]  # As nohup has it, so it stays.
        self._before = {number: signal.signal(number, self._told) for number in numbers}

    def variable(self, name: str) -> str:
        """As the process began with it; our parent may have set it since, and gave it to us so."""
        if self.pid == os.getppid():
            return os.environ.get(name, "")
        found = [x for x in self._environment().split(b"\0") if x.startswith(f"{name}=".encode())]
        return os.fsdecode(found[0].partition(b"=")[2]) if found else ""

    def _environment(self) -> bytes:
        """Empty where it may not be read."""
        began = time.monotonic()
        while True:
            try:
                whole = Path(f"/proc/{self.pid}/environ").read_bytes()
            except OSError:
                return b""
            if whole or not self.running() or time.monotonic() > began + BORN_S:
                return whole
            time.sleep(BORN_S / 100)

    def running(self) -> bool:
        """Until it ends, or we leave; from any thread."""
        return not self._left.is_set() and not _ended(self._descriptor, 0)

    def wait(self) -> int:
        """0: how it ended is for its parent to know."""
        while not self._left.is_set() and not _ended(self._descriptor, LOOK_S):
            pass
        return 0

    def release(self) -> None:
        """Signals are ours again, as they were before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def leave(self) -> None:
        """From any thread."""
        self._left.set()

    def _told(self, number: int, frame: FrameType | None) -> None:
        self.leave()


def _ended(descriptor: int, seconds: float) -> bool:
    """Whether a process ends within so long; its descriptor can be read from then on."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def family(pid: int) -> set[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            children.setdefault(_parent(entry), []).append(int(entry.name))
    found, fresh = set(), [pid]
    while fresh:
        one = fresh.pop()
        found.add(one)
        fresh += children.get(one, [])
    return found


def _parent(entry: Path) -> int:
    """0 for one that has just ended."""
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
