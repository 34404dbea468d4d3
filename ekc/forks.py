"""Safe forks of a process that uses ekc in several threads.

A library in C (NVRTC, XGBoost, SQLite, NVML) holds locks of its own during a call. A process that is forked
meanwhile by another thread inherits them locked, and its first call of that library never returns. So a fork
waits until such calls end; the first use of a name of ekc, which imports it, counts as one. What belongs to
the parent alone (worker processes, leases) a child lets go of.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Protocol

PATIENCE_S = 60.0
"""A call that takes longer does not stop a fork: its library may hang."""


class ParentOwned(Protocol):
    """An object that a forked child must not use, end or delete."""

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


def _free_cached_properties() -> None:
    """Give each cached property of ekc a new lock. Before Python 3.12 it has one for all instances of its
    class, and a thread of the parent may have held it."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "ekc"]
    classes = {c for module in modules for c in vars(module).values() if isinstance(c, type)}
    for one in (value for c in classes for value in vars(c).values() if isinstance(value, cached_property)):
        one.lock = threading.RLock()  # type: ignore[attr-defined]


os.register_at_fork(
    before=_gate.before, after_in_parent=_gate.after_in_parent, after_in_child=_gate.after_in_child
)
os.register_at_fork(after_in_child=_abandon_owned)
if sys.version_info < (3, 12):
    os.register_at_fork(after_in_child=_free_cached_properties)


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
