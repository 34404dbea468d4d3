"""Signals that one process sends another: a user, a shell, a terminal, a batch system."""

from __future__ import annotations

import signal

_CANNOT_BE_HANDLED = {signal.SIGKILL, signal.SIGSTOP}
_OWN_FAULTS = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGSYS,
    signal.SIGPIPE,
    signal.SIGXFSZ,
}
"""The kernel sends them to a process for what it did."""
_OF_CHILDREN_AND_FILES = {signal.SIGCHLD, signal.SIGURG}
_OF_TERMINAL_ACCESS = {signal.SIGTTIN, signal.SIGTTOU}
SENT = tuple(
    sorted(
        signal.valid_signals()
        - _CANNOT_BE_HANDLED
        - _OWN_FAULTS
        - _OF_CHILDREN_AND_FILES
        - _OF_TERMINAL_ACCESS
    )
)
"""Real-time signals and those that stop and continue too."""
