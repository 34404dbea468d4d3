"""Safe forks of a process that uses ekc in several threads.

A library in C (NVRTC, XGBoost, SQLite, NVML) holds locks of its own during a call. A process that another
thread forks meanwhile inherits them locked, and its first call of that library never returns. So a fork waits
until such calls end; the first use of a name of ekc, which imports it, counts as such a call. A child
detaches from objects of the parent (worker processes, leases).
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

CALL_TIMEOUT_S = 60.0
"""Seconds after which a call no longer delays a fork: its library may hang."""


class ParentOwned(Protocol):
    """An object of the parent, which a forked child must not use, end or delete."""

    def detach(self) -> None:
        """In the child: drop the object without a message to it and without a lock."""


class _ForkGate:
    """Counts the running calls of each thread; one fork at a time waits for those of other threads."""

    def __init__(self) -> None:
        self._reset({})

    def _reset(self, calls_by_thread: dict[int, int]) -> None:
        self._condition = threading.Condition()
        self._calls_by_thread = calls_by_thread
        self._forking_thread: int | None = None

    def enter(self) -> None:
        me = threading.get_ident()
        with self._condition:
            self._condition.wait_for(
                lambda: me in self._calls_by_thread or self._forking_thread in (None, me)
            )
            self._calls_by_thread[me] = self._calls_by_thread.get(me, 0) + 1

    def leave(self) -> None:
        me = threading.get_ident()
        with self._condition:
            self._calls_by_thread[me] -= 1
            if not self._calls_by_thread[me]:
                del self._calls_by_thread[me]
                self._condition.notify_all()

    def before_fork(self) -> None:
        me = threading.get_ident()
        with self._condition:
            if self._condition.wait_for(lambda: self._forking_thread is None, CALL_TIMEOUT_S):
                self._forking_thread = me
                self._condition.wait_for(lambda: not self._calls_by_thread.keys() - {me}, CALL_TIMEOUT_S)

    def after_fork_in_parent(self) -> None:
        with self._condition:
            if self._forking_thread == threading.get_ident():
                self._forking_thread = None
                self._condition.notify_all()

    def after_fork_in_child(self) -> None:
        """Only the thread that forked exists here; another may have held the condition."""
        self._reset(
            {thread: n for thread, n in self._calls_by_thread.items() if thread == threading.get_ident()}
        )


_fork_gate = _ForkGate()
_owned_objects: weakref.WeakSet[ParentOwned] = weakref.WeakSet()


def _detach_owned_objects() -> None:
    for one in _owned_objects:
        one.detach()


def _replace_cached_property_locks() -> None:
    """Give each cached property of ekc a new lock. Before Python 3.12 it has one lock for all instances of
    its class, which a thread of the parent may have held."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "ekc"]
    classes = {c for module in modules for c in vars(module).values() if isinstance(c, type)}
    for one in (value for c in classes for value in vars(c).values() if isinstance(value, cached_property)):
        one.lock = threading.RLock()  # type: ignore[attr-defined]


os.register_at_fork(
    before=_fork_gate.before_fork,
    after_in_parent=_fork_gate.after_fork_in_parent,
    after_in_child=_fork_gate.after_fork_in_child,
)
os.register_at_fork(after_in_child=_detach_owned_objects)
if sys.version_info < (3, 12):
    os.register_at_fork(after_in_child=_replace_cached_property_locks)


@contextmanager
def hold_forks() -> Iterator[None]:
    """No other thread forks within the block: for a call into a library that holds locks, or for a step that
    a child must inherit completely or not at all. Keep it short, and wait for no other thread in it."""
    _fork_gate.enter()
    try:
        yield
    finally:
        _fork_gate.leave()


def detach_in_children(owned_object: ParentOwned) -> None:
    """Call `detach` of an object first in each process that is forked while the object lives."""
    _owned_objects.add(owned_object)
