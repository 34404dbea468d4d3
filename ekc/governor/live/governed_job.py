"""The governed job: a command of the governor, or a running process, which it never changes or stops."""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import FrameType
from typing import Any

from ekc.errors import InvalidInput
from ekc.processes.group_signals import (
    EXTERNAL_SIGNALS,
    STOP_SIGNALS,
    WAITED_SIGNALS,
    GroupSignalDetector,
    stop_beside,
)
from ekc.processes.process_facts import has_default_action, is_stopped, list_process_family, read_environment

SignalHandler = Callable[[int, FrameType | None], Any] | int | None
"""A signal handler, as `signal.signal` takes and returns it."""
POLL_S = 0.2
KILLED_STATUS = 128
"""Exit status of a job ended by a signal, less the number of the signal, as in shells."""
SIGNAL_SPREAD_S = 0.05
"""Seconds within which a signal to several processes reaches all of them."""
STOP_TIMEOUT_S = 1.0
"""Seconds for a job that was sent a stop signal to stop, before it is stopped by SIGSTOP."""
STOP_EXPECTED_S = 5.0
"""Seconds after a stop signal in which the governor keeps the previous settings, in expectation of a stop:
Slurm suspends a job by SIGTSTP, and two seconds later by SIGSTOP, which cannot be handled."""
_LEAVING_SIGNALS = tuple(
    n for n in EXTERNAL_SIGNALS if n not in (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)
)
"""Signals that end a program by default, on which the governor leaves a process that it did not start."""
_BLOCKED_SIGNALS = (*WAITED_SIGNALS, *STOP_SIGNALS, signal.SIGCONT)
"""Signals that the governor of a command blocks and reads. Of a stop signal and SIGCONT the kernel then keeps
the later one. Handlers in Python would be called in the order of the numbers."""
ENVIRONMENT_TIMEOUT_S = 1.0
"""Seconds to wait for a process's environment, which is empty while the process starts."""


PauseContext = Callable[[], AbstractContextManager[None]]
"""Makes a context within which the previous settings are in force."""


class CommandStartError(InvalidInput):
    """A command that cannot be started; `exit_status` is that of shells."""

    def __init__(self, word: str, problem: Exception) -> None:
        if not word:  # Each folder of PATH would be a program of this name that cannot run.
            problem = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        reason = getattr(problem, "strerror", None) or str(problem)
        file = shutil.which(word, mode=os.F_OK)
        is_missing = isinstance(problem, FileNotFoundError) and file is None
        if isinstance(problem, FileNotFoundError) and file is not None:
            reason = "the program that its first line names does not exist"
        super().__init__(f"cannot run {word!r}: {reason}")
        self.exit_status = 127 if is_missing else 126


class CommandJob:
    """A command, started with the governor's terminal, process group, files and environment.

    A signal sent to the governor alone is passed on; one sent to the group has reached the command already.
    Where the command is stopped, the governor stops too, with the previous settings in force. Raises
    `CommandStartError` where the command cannot be started. Use it in the main thread only.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.pause: PauseContext = nullcontext
        """The context in which the governor stops."""
        self._previous_handlers: dict[int, SignalHandler] = {}
        self._pending_signals: list[int] = []
        """Signals that were received, but neither passed on nor dropped yet."""
        self._is_forwarding = False
        self._repeated_signals: set[int] = set()
        """Came again before the detector forgot the first: it cannot tell whether the group was sent both."""
        self._is_started = False
        self._descriptor: int | None = None
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        self._unblocked_signals = [n for n in _BLOCKED_SIGNALS if n not in blocked]
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
            raise CommandStartError(words[0], problem) from problem
        # From here on a signal to the group reaches the command too.
        early_signals, self._pending_signals = self._pending_signals, []
        self.pid = self._process.pid
        # Every thread that is started from here on blocks them too.
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)
        self._install_handlers(ignored=True)
        # A terminal may stop processes that write to it from the background; the governor must not stop.
        self._previous_handlers[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        self._descriptor = _open_descriptor(self.pid)
        self._forward_early_signals(early_signals)
        self._is_started = True
        self._forward_pending_signals()

    def _install_handlers(self, ignored: bool) -> None:
        """Handle the signals that are ignored so far (`ignored`), or all others."""
        for number in (*EXTERNAL_SIGNALS, signal.SIGTTIN):
            is_ignored = signal.getsignal(number) == signal.SIG_IGN
            if number not in self._previous_handlers and is_ignored == ignored:
                self._previous_handlers[number] = signal.signal(number, self._receive_signal)

    def restore_signals(self) -> None:
        """Restore the previous signal handlers."""
        self._take_blocked_signals()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self._unblocked_signals)
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._previous_handlers = {}
        self._group_detector.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def read_variable(self, name: str) -> str | None:
        """Variable of the governor's environment, which the command inherited."""
        return os.environ.get(name)

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
        while not self._has_ended(POLL_S):
            self._take_blocked_signals()
            if self._read_stop_signal() == signal.SIGTTOU:
                with self.pause():
                    stop_beside(self.pid)

    def _has_ended(self, seconds: float) -> bool:
        """Whether the command ends within `seconds`. Its exit status stays to be read."""
        if self._descriptor is not None:
            return _has_ended(self._descriptor, seconds)
        time.sleep(seconds)  # A sandbox without process descriptors.
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _take_blocked_signals(self) -> None:
        """Queue those of `_BLOCKED_SIGNALS` that another process has sent."""
        for number in _read_blocked_signals(_BLOCKED_SIGNALS):
            self._receive_signal(number, None)

    def stop_waiting(self) -> None:
        """No effect: the governor always waits for its own command."""

    def _forward_early_signals(self, numbers: Sequence[int]) -> None:
        """Pass on signals received before the command was started, also those to the group."""
        for number in numbers:
            if number != signal.SIGTTIN:  # The command's own, which reads from a terminal.
                with self._group_detector.clear_signal(number):
                    self._process.send_signal(number)
            if number in STOP_SIGNALS:
                self._pending_signals.append(number)

    def _receive_signal(self, number: int, frame: FrameType | None) -> None:
        """Queue a signal once while it is pending: `timeout` signals its child, then the group."""
        if number not in self._pending_signals:
            self._pending_signals.append(number)
        if self._is_started and not self._is_forwarding:
            self._forward_pending_signals()

    def _forward_pending_signals(self) -> None:
        """Pass on queued signals that did not reach the group, after `SIGNAL_SPREAD_S`."""
        self._is_forwarding = True
        self._repeated_signals = set()
        while self._pending_signals:
            number = self._pending_signals[0]
            if number not in STOP_SIGNALS or self._has_ended(0):
                self._forward_signal()
                continue
            with self.pause():
                self._stop_with_command(number, is_sent_to_all=not self._forward_signal())
        self._is_forwarding = False

    def _forward_signal(self) -> bool:
        """Pass on the first queued signal unless the group has it; returns whether it was passed on."""
        time.sleep(SIGNAL_SPREAD_S)
        self._take_blocked_signals()
        number = self._pending_signals.pop(0)
        if number in STOP_SIGNALS and signal.SIGCONT in self._pending_signals:
            return False  # It is over; the kernel has dropped it too, so the detector cannot show it.
        if self._group_detector.has_received(number):
            with self._group_detector.clear_signal(number):
                self._take_blocked_signals()
                is_repeated = number in self._pending_signals
            if is_repeated:
                self._repeated_signals.add(number)
            else:
                self._repeated_signals.discard(number)
            return False
        if number in self._repeated_signals:
            self._repeated_signals.remove(number)
            return False
        if number in (*STOP_SIGNALS, signal.SIGCONT):
            self._signal_family(number)
        else:
            self._process.send_signal(number)
        return True

    def _signal_family(self, number: int) -> None:
        """Stop or continue the command and its descendants: a shell or a launcher does not pass that on."""
        if self._has_ended(0):
            return
        for pid in list_process_family(self.pid):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _stop_with_command(self, number: int, is_sent_to_all: bool) -> None:
        """Stop the governor when the command stops, if it does; who continues it sends SIGCONT.

        The kernel drops a stop signal for a group without a shell that could continue it, as in a batch job.
        Processes that were sent one by us, and have no handler, are stopped all the same.
        """
        start_s = time.monotonic()
        is_forced = is_sent_to_all
        while time.monotonic() < start_s + STOP_EXPECTED_S and not self._has_ended(SIGNAL_SPREAD_S):
            if not is_forced and time.monotonic() > start_s + STOP_TIMEOUT_S:
                is_forced = True
                self._stop_unstopped(number)
            is_due = is_stopped(self.pid) and (is_forced or not self._list_unstopped(number))
            self._take_blocked_signals()
            if self._pending_signals:  # SIGCONT may be one of them.
                return
            if is_due:
                stop_beside(self.pid)
                return

    def _list_unstopped(self, number: int) -> list[int]:
        """Processes of the command that a stop signal would stop by default, and that are not stopped."""
        family = list_process_family(self.pid)
        return [pid for pid in family if not is_stopped(pid) and has_default_action(pid, number)]

    def _stop_unstopped(self, number: int) -> None:
        for pid in self._list_unstopped(number):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGSTOP)

    def _read_stop_signal(self) -> int | None:
        """Signal that has stopped the command since the last call; None without one."""
        try:
            change = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG)
        except ChildProcessError:
            return None
        return None if change is None else change.si_status


def _open_descriptor(pid: int) -> int | None:
    """Descriptor that becomes readable when a child ends; None in a sandbox without it."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _read_blocked_signals(numbers: Sequence[int]) -> Iterator[int]:
    """Those of some blocked signals that another process has sent."""
    while (found := signal.sigtimedwait(numbers, 0)) is not None:
        if found.si_pid != os.getpid():  # Ours: a write to a closed pipe, or beyond the size of files.
            yield found.si_signo


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
        self.pause: PauseContext = nullcontext
        """The context in which the governor stops."""
        # Ignored signals (nohup) stay ignored.
        self._previous_handlers = {
            number: signal.signal(number, self._leave)
            for number in _LEAVING_SIGNALS
            if signal.getsignal(number) != signal.SIG_IGN
        }
        self._stop_signals = [n for n in STOP_SIGNALS if signal.getsignal(n) != signal.SIG_IGN]
        self._previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*self._stop_signals, signal.SIGCONT))
        # A terminal may stop processes that write to it from the background; the governor must not stop.
        self._previous_handlers[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    def read_variable(self, name: str) -> str | None:
        """Variable of the environment with which the process began; for the parent process, as it is now."""
        if self.pid == os.getppid():
            return os.environ.get(name)
        return self._read_environment().get(name)

    def _read_environment(self) -> dict[str, str]:
        """The process's environment; empty where it may not be read."""
        start_s = time.monotonic()
        while True:
            environment = read_environment(self.pid)
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
            if any(_read_blocked_signals(self._stop_signals)):
                self._stop()
        return 0

    def restore_signals(self) -> None:
        """Restore the previous signal handlers and the previous mask."""
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._previous_mask)

    def stop_waiting(self) -> None:
        """Leave the process; from any thread."""
        self._has_left.set()

    def _leave(self, number: int, frame: FrameType | None) -> None:
        self.stop_waiting()

    def _stop(self) -> None:
        """Stop the governor alone, unless it was continued meanwhile; the process was started by another, who
        stops it or not."""
        with self.pause():
            if signal.SIGCONT not in signal.sigpending():
                os.kill(os.getpid(), signal.SIGSTOP)


GovernedJob = CommandJob | AttachedJob
"""A job that is governed until it ends, or until the governor leaves it."""


def _has_ended(descriptor: int, seconds: float) -> bool:
    """Whether a process ends within `seconds`; its descriptor becomes readable then."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))
