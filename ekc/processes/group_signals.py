"""Signals that one process sends another: a user, a shell, a terminal, a batch system.

`GroupSignalDetector` tells a signal to one process from one to all of a process group. The receiver cannot
know: both look the same to it. So another member of the group blocks all signals; what was sent to the group,
or to every process of a batch job one by one, is pending there, and `/proc` shows it.

`stop_beside` stops this process for as long as its child is stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from ekc.processes.process_facts import is_stopped, read_status

_UNHANDLABLE = "SIGKILL", "SIGSTOP"
_FAULTS = "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS", "SIGPIPE", "SIGXFSZ"
"""The kernel sends them to a process for what it did."""
WAITED_SIGNALS = tuple(signal.Signals[name] for name in _FAULTS)
"""Other processes may send them too. A handler in Python cannot tell, and would run forever for a true fault;
a process that blocks them gets those of others by `signal.sigtimedwait`, and still ends by its own fault."""
STOP_SIGNALS = (signal.SIGTSTP, signal.SIGTTIN)
"""Signals by which a terminal, a shell or a batch system stops a job, and which can be handled."""
_CHILD_AND_FILE, _TERMINAL_ACCESS = ("SIGCHLD", "SIGURG"), ("SIGTTIN", "SIGTTOU")
_INTERNAL = {signal.Signals[name] for name in (*_UNHANDLABLE, *_FAULTS, *_CHILD_AND_FILE, *_TERMINAL_ACCESS)}
EXTERNAL_SIGNALS = tuple(sorted(signal.valid_signals() - _INTERNAL))
"""Real-time signals and those that stop and continue too."""


MEMBER_COMMAND = ("cat",)
"""Small, on every system, ends with its input, and no user ends it by name when this program is meant."""


class GroupSignalDetector:
    """A member of our process group until `close`, or until we end. Without the program, none is there and
    every signal counts as sent to us alone."""

    def __init__(self) -> None:
        self._received: set[int] = set()
        """By witnesses before this one, and not yet asked for."""
        self._pid, self._input_fd = _start_member()

    def has_received(self, number: int) -> bool:
        """Whether the group was sent this signal since it was last cleared."""
        return number in self._received | _list_pending_signals(self._pid)

    @contextlib.contextmanager
    def clear_signal(self, number: int) -> Iterator[None]:
        """A signal is pending until the process ends, so another takes its place, and has begun to when the
        body of the `with` runs: it does not show what was sent before."""
        before = self._pid, self._input_fd
        self._pid, self._input_fd = _start_member()
        yield
        self._received = (self._received | _list_pending_signals(before[0])) - {number}
        _end_member(*before)

    def close(self) -> None:
        """End the process."""
        _end_member(self._pid, self._input_fd)
        self._pid, self._input_fd = None, -1


def _start_member() -> tuple[int | None, int]:
    """Process id, and the pipe that ends it; it keeps no file of ours open."""
    reading, writing = os.pipe()
    null = os.devnull, os.O_WRONLY, 0
    files = [(os.POSIX_SPAWN_DUP2, reading, 0), *((os.POSIX_SPAWN_OPEN, fd, *null) for fd in (1, 2))]
    try:
        blocked = signal.valid_signals()
        return os.posix_spawnp(
            MEMBER_COMMAND[0], MEMBER_COMMAND, os.environ, file_actions=files, setsigmask=blocked
        ), writing
    except OSError:
        return None, writing
    finally:
        os.close(reading)


def _list_pending_signals(pid: int | None) -> set[int]:
    """Signals that wait for a process."""
    status = {} if pid is None else read_status(pid)
    masks = [int(status.get(name, "0"), 16) for name in ("ShdPnd", "SigPnd")]
    return {number for number in signal.valid_signals() if any(mask >> (number - 1) & 1 for mask in masks)}


def _end_member(pid: int | None, pipe: int) -> None:
    if pipe >= 0:
        os.close(pipe)
    if pid is not None:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


CONTINUE_POLL_S = 0.1
"""Seconds between two looks at the states of two processes; a signal to both has reached both by then."""


def stop_beside(child: int) -> None:
    """Stop this process, where a child is stopped; whoever continues both sends SIGCONT.

    SIGCONT may come just before this process stops, or to the child alone. A process in a session of its own
    continues this one then: it does not stay stopped while the child runs or has ended. Where that process
    cannot be started, this one stops all the same.
    """
    if not is_stopped(child):
        return
    words = [sys.executable, "-m", __name__, str(os.getpid()), str(child)]
    null = subprocess.DEVNULL
    watcher = None
    with contextlib.suppress(OSError):
        watcher = subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    if watcher is not None:
        watcher.kill()
        watcher.wait()


def _continue_beside(parent: int, child: int) -> None:
    """Continue the parent of this process when it is stopped and its other child is not; until it ends."""
    was_alone = False
    while os.getppid() == parent:
        is_alone = is_stopped(parent) and not is_stopped(child)
        if is_alone and was_alone:
            os.kill(parent, signal.SIGCONT)
        was_alone = is_alone
        time.sleep(CONTINUE_POLL_S)


if __name__ == "__main__":
    _continue_beside(*map(int, sys.argv[1:]))
