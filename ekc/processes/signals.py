"""Signals that one process sends another: a user, a shell, a terminal, a batch system."""

from __future__ import annotations

import signal

_UNHANDLABLE = {signal.SIGKILL, signal.SIGSTOP}
_FAULT_SIGNALS = {
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
_CHILD_AND_FILE_SIGNALS = {signal.SIGCHLD, signal.SIGURG}
_TERMINAL_ACCESS_SIGNALS = {signal.SIGTTIN, signal.SIGTTOU}
EXTERNAL_SIGNALS = tuple(
    sorted(
        signal.valid_signals()
        - _UNHANDLABLE
        - _FAULT_SIGNALS
        - _CHILD_AND_FILE_SIGNALS
        - _TERMINAL_ACCESS_SIGNALS
    )
)
"""Real-time signals and those that stop and continue too."""
