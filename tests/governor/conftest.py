"""Scripted boards, and signals as in a terminal."""

from __future__ import annotations

import signal

import pytest

from tests.scripted.nvml.fixtures import boards, here, one

__all__ = ["boards", "here", "one"]


@pytest.fixture(autouse=True, scope="session")
def default_signals() -> None:
    """Processes in the background may have inherited ignored signals, which their children inherit too."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
