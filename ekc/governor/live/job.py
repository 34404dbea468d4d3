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
from ekc.processes.signals import EXTERNAL_SIGNALS, GroupSignalDetector

SignalHandler = Callable[[int, FrameType | None], Any] | int | None
"""What `signal.signal` takes and returns."""
POLL_S = 0.2
KILLED_STATUS = 128
"""And the number of the signal, as shells have it."""
SIGNAL_SPREAD_S = 0.05
"""Within which a signal to many processes reaches all of them."""
STOP_TIMEOUT_S = 1.0
"""For a command that does something before it stops."""
ENDING_SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "XCPU")
"""Signals by which we leave a process that is not ours."""
ENVIRONMENT_TIMEOUT_S = 1.0
"""A process shows no environment while it is being started; one that has none is waited for so long."""


class GovernedJob(Protocol):
    """What is governed, until it ends."""

    pid: int

    def read_variable(self, name: str) -> str:
        """Of its environment; empty where there is none, or it may not be read."""
        ...

    def is_running(self) -> bool:
        """Whether it is still there."""
        ...

    def wait(self) -> int:
        """Until it ends, or we leave it; the exit status to end with."""
        ...

    def stop_waiting(self) -> None:
        """There is nothing to govern: a process that is not ours is not waited for any longer."""
        ...

    def restore_signals(self) -> None:
        """After all is done: signals do again what they did before."""
        ...


class CommandJob:
    """A command, started by us with our own terminal, process group, files and environment.

    A signal sent to us alone is passed on; one sent to the group has reached it already. Where a terminal
    stops it, we stop too. Raises `InvalidInput` where it cannot be started. To be made, waited for and
    released in the main thread.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._previous_handlers: dict[int, SignalHandler] = {}
        self._pending_signals: list[int] = []
        """Signals about which nothing was decided yet."""
        self._is_forwarding = False
        self._is_started = False
        # Before the command starts: a signal right after would end us, and where we are a terminal's first
        # process, all on it. What is ignored, as nohup has it, is left so until the command has inherited it.
        self._install_handlers(ignored=False)
        self._group_detector = GroupSignalDetector()
        try:
            # Files that were opened for the command, as a shell's <(...) does, stay open.
            self._process = subprocess.Popen(list(words), close_fds=False)
        except (OSError, ValueError) as problem:
            self.restore_signals()
            reason = getattr(problem, "strerror", None) or str(problem)
            raise InvalidInput(f"cannot run {words[0]!r}: {reason}") from problem
        self.pid = self._process.pid
        self._install_handlers(ignored=True)
        # Where the terminal stops whoever writes to it from the background, what we write must not.
        self._previous_handlers[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        self._forward_early_signals()
        self._is_started = True
        self._forward_pending_signals()

    def _install_handlers(self, ignored: bool) -> None:
        """Take over the signals that are ignored so far, or the others."""
        for number in EXTERNAL_SIGNALS:
            if (
                number not in self._previous_handlers
                and (signal.getsignal(number) == signal.SIG_IGN) == ignored
            ):
                self._previous_handlers[number] = signal.signal(number, self._receive_signal)

    def restore_signals(self) -> None:
        """Signals are ours again, as they were before."""
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._previous_handlers = {}
        self._group_detector.close()

    def read_variable(self, name: str) -> str:
        """It was given ours."""
        return os.environ.get(name, "")

    def is_running(self) -> bool:
        """From any thread, while the main one waits."""
        return self._process.returncode is None

    def wait(self) -> int:
        """The command's own exit status; 128 and the signal where one ended it."""
        self._wait_until_ended()
        status = self._process.wait()
        return KILLED_STATUS - status if status < 0 else status

    def _wait_until_ended(self) -> None:
        """In short waits: Python handles a signal between two steps of its own, so one that comes just before
        a wait without end would be passed on when the command has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:  # A sandbox that does not know the call; asking again and again costs more.
            while self._process.poll() is None:
                time.sleep(POLL_S)
            return
        while not _has_ended(descriptor, POLL_S):
            if self._read_stop_signal() == signal.SIGTTOU:
                _stop_this_process()
        os.close(descriptor)

    def stop_waiting(self) -> None:
        """A command of ours is waited for all the same."""

    def _forward_early_signals(self) -> None:
        """A signal from before the command could handle it has ended it, or was sent before it was there."""
        while self._pending_signals:
            number = self._pending_signals.pop(0)
            self._group_detector.clear_signal(number)
            self._process.send_signal(number)

    def _receive_signal(self, number: int, frame: FrameType | None) -> None:
        """One that comes again before it was decided about is the same: `timeout` sends to its child first,
        then to the group."""
        if number not in self._pending_signals:
            self._pending_signals.append(number)
        if self._is_started and not self._is_forwarding:
            self._forward_pending_signals()

    def _forward_pending_signals(self) -> None:
        """Whether signals have to be passed on, once they have reached whom else they were sent to."""
        self._is_forwarding = True
        while self._pending_signals:
            time.sleep(SIGNAL_SPREAD_S)
            number = self._pending_signals.pop(0)
            if not self._group_detector.has_received(number):
                self._process.send_signal(number)
            if number == signal.SIGTSTP:
                self._stop_with_command()
        self._is_forwarding = False

    def _stop_with_command(self) -> None:
        """When the command stops; it may have other plans. The shell sees us, and continues us both."""
        latest = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < latest and self._process.returncode is None:
            if signal.SIGCONT in self._pending_signals:
                return
            if self._read_stop_signal() is not None:
                _stop_this_process()
                return
            time.sleep(SIGNAL_SPREAD_S)

    def _read_stop_signal(self) -> int | None:
        """The signal that has stopped the command since this was last asked."""
        try:
            seen = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
        except ChildProcessError:
            return None
        return None if seen is None else seen.si_status


def _stop_this_process() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


class AttachedJob:
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
        self._has_left = threading.Event()
        ending = [signal.Signals[f"SIG{name}"] for name in ENDING_SIGNALS]
        numbers = [
            n for n in ending if signal.getsignal(n) != signal.SIG_IGN
        ]  # As nohup has it, so it stays.
        self._previous_handlers = {number: signal.signal(number, self._handle_signal) for number in numbers}

    def read_variable(self, name: str) -> str:
        """As the process began with it; our parent may have set it since, and gave it to us so."""
        if self.pid == os.getppid():
            return os.environ.get(name, "")
        found = [x for x in self._read_environment().split(b"\0") if x.startswith(f"{name}=".encode())]
        return os.fsdecode(found[0].partition(b"=")[2]) if found else ""

    def _read_environment(self) -> bytes:
        """Empty where it may not be read."""
        began = time.monotonic()
        while True:
            try:
                whole = Path(f"/proc/{self.pid}/environ").read_bytes()
            except OSError:
                return b""
            if whole or not self.is_running() or time.monotonic() > began + ENVIRONMENT_TIMEOUT_S:
                return whole
            time.sleep(ENVIRONMENT_TIMEOUT_S / 100)

    def is_running(self) -> bool:
        """Until it ends, or we leave; from any thread."""
        return not self._has_left.is_set() and not _has_ended(self._descriptor, 0)

    def wait(self) -> int:
        """0: how it ended is for its parent to know."""
        while not self._has_left.is_set() and not _has_ended(self._descriptor, POLL_S):
            pass
        return 0

    def restore_signals(self) -> None:
        """Signals are ours again, as they were before."""
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def stop_waiting(self) -> None:
        """From any thread."""
        self._has_left.set()

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop_waiting()


def _has_ended(descriptor: int, seconds: float) -> bool:
    """Whether a process ends within so long; its descriptor can be read from then on."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def list_process_family(pid: int) -> set[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            children.setdefault(_read_parent_pid(entry), []).append(int(entry.name))
    found, fresh = set(), [pid]
    while fresh:
        one = fresh.pop()
        found.add(one)
        fresh += children.get(one, [])
    return found


def _read_parent_pid(entry: Path) -> int:
    """0 for one that has just ended."""
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
