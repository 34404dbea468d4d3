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

from ekc.errors import InvalidInput

Handler = Callable[[int, FrameType | None], Any] | int | None
"""What `signal.signal` takes and returns."""
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers send to the process that they started, which is us."""
LOOK_S = 0.2
KILLED = 128
"""And the number of the signal, as shells have it."""
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


class Command:
    """A command, started by us with our own terminal, files and environment.

    Signals meant for it are passed on. A Ctrl-C reaches it from the terminal without us. Raises
    `InvalidInput` where it cannot be started. To be made, and waited for, in the main thread.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._before: dict[int, Handler] = {}
        early: list[int] = []
        self._send: Callable[[int], None] = early.append
        # Before the command starts: a signal right after would end us, and where we are a terminal's first
        # process, all on it. What is ignored, as nohup has it, is left so until the command has inherited it.
        self._handle(ignored=False)
        try:
            # Files that were opened for the command, as a shell's <(...) does, stay open.
            self._process = subprocess.Popen(list(words), close_fds=False)
        except (OSError, ValueError) as problem:
            self._give_back()
            reason = getattr(problem, "strerror", None) or str(problem)
            raise InvalidInput(f"cannot run {words[0]!r}: {reason}") from problem
        self.pid = self._process.pid
        self._send = self._process.send_signal
        self._handle(ignored=True)
        for number in early:
            self._send(number)

    def _handle(self, ignored: bool) -> None:
        """Take over the signals that are ignored so far, or the others."""
        for number in (*FORWARDED, signal.SIGINT):
            if number not in self._before and (signal.getsignal(number) == signal.SIG_IGN) == ignored:
                handler = self._interrupted if number == signal.SIGINT else self._pass_on
                self._before[number] = signal.signal(number, handler)

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

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
        self._give_back()
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
            pass
        os.close(descriptor)

    def leave(self) -> None:
        """A command of ours is waited for all the same."""

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._send(number)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        """Only what did not come from a terminal has to be passed on."""
        if not _in_foreground():
            self._send(number)


class Attached:
    """A process that runs already; we leave when it ends, or on SIGTERM or Ctrl-C, and it goes on without us.

    Raises `InvalidInput` where there is no such process. To be made, and waited for, in the main thread.
    """

    def __init__(self, pid: int) -> None:
        try:
            self._descriptor = os.pidfd_open(pid)
        except OSError as problem:
            raise InvalidInput(f"--pid {pid}: {problem.strerror}; see ps for the jobs that run") from problem
        self.pid = pid
        self._left = threading.Event()
        told = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        numbers = [n for n in told if signal.getsignal(n) != signal.SIG_IGN]  # As nohup has it, so it stays.
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
        for number, handler in self._before.items():
            signal.signal(number, handler)
        return 0

    def leave(self) -> None:
        """From any thread."""
        self._left.set()

    def _told(self, number: int, frame: FrameType | None) -> None:
        self.leave()


def _in_foreground() -> bool:
    """Whether a Ctrl-C of our terminal, which stdin need not be, reaches us and so a command of ours."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


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
