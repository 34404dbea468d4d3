"""The governed job: a command of the governor, or a running process, which it never changes or stops."""

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
from ekc.processes.group_signals import EXTERNAL_SIGNALS, GroupSignalDetector

SignalHandler = Callable[[int, FrameType | None], Any] | int | None
"""A signal handler, as `signal.signal` takes and returns it."""
POLL_S = 0.2
KILLED_STATUS = 128
"""Exit status of a job ended by a signal, less the number of the signal, as in shells."""
SIGNAL_SPREAD_S = 0.05
"""Seconds within which a signal to several processes reaches all of them."""
STOP_TIMEOUT_S = 1.0
"""Seconds to wait for a command that does something before it stops."""
ENDING_SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "ALRM", "TERM", "XCPU")
"""Signals on which the governor leaves a process that it did not start."""
ENVIRONMENT_TIMEOUT_S = 1.0
"""Seconds to wait for a process's environment, which is empty while the process starts."""


class GovernedJob(Protocol):
    """A job that is governed until it ends."""

    pid: int

    def read_variable(self, name: str) -> str:
        """Variable of the job's environment; empty if it is not set or may not be read."""

    def is_running(self) -> bool:
        """Whether the job is still running."""

    def wait(self) -> int:
        """Wait until the job ends or the governor leaves it; returns the exit status for the governor."""

    def stop_waiting(self) -> None:
        """Stop waiting for a process that the governor did not start: there is nothing to govern."""

    def restore_signals(self) -> None:
        """Restore the previous signal handlers."""


class CommandJob:
    """A command, started with the governor's terminal, process group, files and environment.

    A signal sent to the governor alone is passed on; one sent to the group has reached the command already.
    Where a terminal stops the command, the governor stops too. Raises `InvalidInput` where the command
    cannot be started. Use it in the main thread only.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._previous_handlers: dict[int, SignalHandler] = {}
        self._pending_signals: list[int] = []
        """Signals that were received, but neither passed on nor dropped yet."""
        self._is_forwarding = False
        self._is_started = False
        # Before the command starts: a signal right after its start would end the governor, and with it every
        # process of a terminal whose first process it is. Ignored signals (nohup) stay ignored until the
        # command has inherited that.
        self._install_handlers(ignored=False)
        self._group_detector = GroupSignalDetector()
        try:
            # Files opened for the command, such as those of a shell's <(...), stay open.
            self._process = subprocess.Popen(list(words), close_fds=False)
        except (OSError, ValueError) as problem:
            self.restore_signals()
            reason = getattr(problem, "strerror", None) or str(problem)
            raise InvalidInput(f"cannot run {words[0]!r}: {reason}") from problem
        # From here on a signal to the group reaches the command too.
        early_signals, self._pending_signals = self._pending_signals, []
        self.pid = self._process.pid
        self._install_handlers(ignored=True)
        # A terminal may stop processes that write to it from the background; the governor must not stop.
        self._previous_handlers[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        self._forward_early_signals(early_signals)
        self._is_started = True
        self._forward_pending_signals()

    def _install_handlers(self, ignored: bool) -> None:
        """Handle the signals that are ignored so far (`ignored`), or all others."""
        for number in EXTERNAL_SIGNALS:
            is_ignored = signal.getsignal(number) == signal.SIG_IGN
            if number not in self._previous_handlers and is_ignored == ignored:
                self._previous_handlers[number] = signal.signal(number, self._receive_signal)

    def restore_signals(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._previous_handlers = {}
        self._group_detector.close()

    def read_variable(self, name: str) -> str:
        """Variable of the governor's environment, which the command inherited."""
        return os.environ.get(name, "")

    def is_running(self) -> bool:
        """Whether the command is still running; from any thread, while the main one waits."""
        return self._process.returncode is None

    def wait(self) -> int:
        """Exit status of the command; 128 plus the number of a signal that ended it."""
        self._wait_until_ended()
        status = self._process.wait()
        return KILLED_STATUS - status if status < 0 else status

    def _wait_until_ended(self) -> None:
        """Wait in short steps: Python handles a signal between two of its own instructions, so a signal that
        comes just before an endless wait would be passed on only after the command has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:  # A sandbox without this call; polling costs more.
            while self._process.poll() is None:
                time.sleep(POLL_S)
            return
        while not _has_ended(descriptor, POLL_S):
            if self._read_stop_signal() == signal.SIGTTOU:
                _stop_this_process()
        os.close(descriptor)

    def stop_waiting(self) -> None:
        """No effect: the governor always waits for its own command."""

    def _forward_early_signals(self, numbers: Sequence[int]) -> None:
        """Pass on signals received before the command was started, also those to the group."""
        for number in numbers:
            with self._group_detector.clear_signal(number):
                self._process.send_signal(number)

    def _receive_signal(self, number: int, frame: FrameType | None) -> None:
        """Queue a signal once while it is pending: `timeout` signals its child, then the group."""
        if number not in self._pending_signals:
            self._pending_signals.append(number)
        if self._is_started and not self._is_forwarding:
            self._forward_pending_signals()

    def _forward_pending_signals(self) -> None:
        """Pass on queued signals that did not reach the group, after `SIGNAL_SPREAD_S`."""
        self._is_forwarding = True
        repeated: set[int] = set()
        """Came again before the detector forgot the first: it cannot tell whether the group was sent both."""
        while self._pending_signals:
            time.sleep(SIGNAL_SPREAD_S)
            number = self._pending_signals.pop(0)
            if self._group_detector.has_received(number):
                with self._group_detector.clear_signal(number):
                    is_repeated = number in self._pending_signals
                repeated = repeated | {number} if is_repeated else repeated - {number}
            elif number in repeated:
                repeated.remove(number)
            else:
                self._process.send_signal(number)
            if number == signal.SIGTSTP:
                self._stop_with_command()
        self._is_forwarding = False

    def _stop_with_command(self) -> None:
        """Stop the governor when the command stops, if it does; the shell continues both."""
        end_s = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < end_s and self._process.returncode is None:
            if signal.SIGCONT in self._pending_signals:
                return
            if self._read_stop_signal() is not None:
                _stop_this_process()
                return
            time.sleep(SIGNAL_SPREAD_S)

    def _read_stop_signal(self) -> int | None:
        """Signal that has stopped the command since the last call; None without one."""
        try:
            change = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
        except ChildProcessError:
            return None
        return None if change is None else change.si_status


def _stop_this_process() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


class AttachedJob:
    """A process that runs already.

    The governor leaves when the process ends, or on a signal that ends a program, such as that of Ctrl-C;
    the process then runs on. Raises `InvalidInput` where there is no such process. Use it in the main thread
    only.
    """

    def __init__(self, pid: int) -> None:
        try:
            self._descriptor = os.pidfd_open(pid)
        except OSError as problem:
            raise InvalidInput(f"--pid {pid}: {problem.strerror}; see ps for the jobs that run") from problem
        self.pid = pid
        self._has_left = threading.Event()
        ending = [signal.Signals[f"SIG{name}"] for name in ENDING_SIGNALS]
        # Ignored signals (nohup) stay ignored.
        numbers = [n for n in ending if signal.getsignal(n) != signal.SIG_IGN]
        self._previous_handlers = {number: signal.signal(number, self._handle_signal) for number in numbers}

    def read_variable(self, name: str) -> str:
        """Variable of the environment with which the process began; for the parent process, as it is now."""
        if self.pid == os.getppid():
            return os.environ.get(name, "")
        found = [x for x in self._read_environment().split(b"\0") if x.startswith(f"{name}=".encode())]
        return os.fsdecode(found[0].partition(b"=")[2]) if found else ""

    def _read_environment(self) -> bytes:
        """The process's environment as bytes; empty where it may not be read."""
        start_s = time.monotonic()
        while True:
            try:
                environment = Path(f"/proc/{self.pid}/environ").read_bytes()
            except OSError:
                return b""
            is_late = time.monotonic() > start_s + ENVIRONMENT_TIMEOUT_S
            if environment or is_late or not self.is_running():
                return environment
            time.sleep(ENVIRONMENT_TIMEOUT_S / 100)

    def is_running(self) -> bool:
        """Whether the process runs and the governor has not left it; from any thread."""
        return not self._has_left.is_set() and not _has_ended(self._descriptor, 0)

    def wait(self) -> int:
        """Wait until the process ends; returns 0, since only its parent can read its exit status."""
        while not self._has_left.is_set() and not _has_ended(self._descriptor, POLL_S):
            pass
        return 0

    def restore_signals(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def stop_waiting(self) -> None:
        """Leave the process; from any thread."""
        self._has_left.set()

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        self.stop_waiting()


def _has_ended(descriptor: int, seconds: float) -> bool:
    """Whether a process ends within `seconds`; its descriptor becomes readable then."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def list_process_family(pid: int) -> set[int]:
    """Ids of a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            children.setdefault(_read_parent_pid(entry), []).append(int(entry.name))
    family, pending = set(), [pid]
    while pending:
        member = pending.pop()
        family.add(member)
        pending += children.get(member, [])
    return family


def _read_parent_pid(entry: Path) -> int:
    """Id of a process's parent; 0 for a process that has just ended."""
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
