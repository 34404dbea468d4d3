"""Safe forks of a process that uses ekc in several threads.

A library in C (NVRTC, XGBoost, SQLite, NVML) holds locks of its own during a call. A process that is forked
meanwhile by another thread inherits them locked, and its first call of that library never returns. So a fork
waits until such calls end. What belongs to the parent alone (worker processes, leases) a child lets go of.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

PATIENCE_S = 60.0
"""A call that takes longer does not stop a fork: its library may hang."""


class ParentOwned(Protocol):
    """What a forked child must not use, end or delete."""

    def abandon(self) -> None:
        """In the child: let go of it, without a word to it and without a lock."""


class _Gate:
    """Counts the calls under way in each thread; one fork at a time waits for those of other threads."""

    def __init__(self) -> None:
        self._begin({})

    def _begin(self, calls: dict[int, int]) -> None:
        self._changed = threading.Condition()
        self._calls = calls
        self._forking: int | None = None

    def enter(self) -> None:
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: me in self._calls or self._forking in (None, me))
            self._calls[me] = self._calls.get(me, 0) + 1

    def leave(self) -> None:
        me = threading.get_ident()
        with self._changed:
            self._calls[me] -= 1
            if not self._calls[me]:
                del self._calls[me]
                self._changed.notify_all()

    def before(self) -> None:
        me = threading.get_ident()
        with self._changed:
            if self._changed.wait_for(lambda: self._forking is None, PATIENCE_S):
                self._forking = me
                self._changed.wait_for(lambda: not self._calls.keys() - {me}, PATIENCE_S)

    def after_in_parent(self) -> None:
        with self._changed:
            if self._forking == threading.get_ident():
                self._forking = None
                self._changed.notify_all()

    def after_in_child(self) -> None:
        """Only the thread that forked is here; another may have held the condition."""
        me = threading.get_ident()
        self._begin({thread: calls for thread, calls in self._calls.items() if thread == me})


_gate = _Gate()
_owned: weakref.WeakSet[ParentOwned] = weakref.WeakSet()


def _abandon_owned() -> None:
    for one in _owned:
        one.abandon()


os.register_at_fork(
    before=_gate.before, after_in_parent=_gate.after_in_parent, after_in_child=_gate.after_in_child
)
os.register_at_fork(after_in_child=_abandon_owned)


@contextmanager
def hold_forks() -> Iterator[None]:
    """No other thread forks within the block: for a call into a library that holds locks, or for a step that
    a child must inherit whole or not at all. Keep it short, and wait for no other thread in it."""
    _gate.enter()
    try:
        yield
    finally:
        _gate.leave()


def abandon_in_children(owned: ParentOwned) -> None:
    """In every process that is forked while this object lives, its `abandon` is called first."""
    _owned.add(owned)
