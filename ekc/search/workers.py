"""Who compiles: threads, or processes where a device leaves work in Python to whoever compiles.

NVRTC lets other threads run, Python does not: what a simulated device counts about a kernel has a core of its
own only in a process of its own. A worker is `python -m ekc.search.worker`, which imports what it needs while
the run begins. Nothing of the caller's `__main__` reaches it, and it ends with its parent, however that ends.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from ekc.devices.base import Counts, Device
from ekc.devices.cuda.remote import Child, Remote
from ekc.errors import DeviceError
from ekc.search.jobs import HUNG_S, Done, Job, Shown

T = TypeVar("T")
MOST = 32
"""Processes at most, whatever was asked for: no round but the first of a long run has more trials to compile
(`rounds.py`), and each holds the memory of a Python of its own."""
FEWEST = 32
"""Trials from which on processes earn their start: it takes each about two seconds of a core to import what
it needs, and spares the caller about a tenth of a second a trial."""
FEWEST_ASIDE = 128
"""Trials from which on a process for half of each population earns its start: they are large enough then."""


@contextmanager
def aside(trials: int, executor: Executor | None = None) -> Iterator[Remote | None]:
    """A process for half of each population of a run of so many trials (`aside.py`); None where it would not
    help, and where the `executor` is the caller's own, or told to be one alone."""
    ours = executor is None or (isinstance(executor, Threads) and executor.number > 1)
    if trials < FEWEST_ASIDE or cores() < 2 or not ours:
        yield None
        return
    remote = Remote("the process aside", partial(Child, 0, "ekc.search.worker"))
    try:
        yield remote
    finally:
        remote.close()


@contextmanager
def hired(device: Device, trials: int, number: int | None = None) -> Iterator[Executor]:
    """So many workers (as many as there are cores, `MOST` at most) for a run of so many trials on a device,
    processes if they help; what still waits when the run ends is not compiled."""
    number = min(number or cores(), MOST)
    apart = isinstance(device, Counts) and number > 1 and trials >= FEWEST
    workers = (Processes if apart else Threads)(number)
    try:
        yield workers
    finally:
        workers.shutdown(cancel_futures=True)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Threads(ThreadPoolExecutor):
    """An executor of ours, as it is told from a caller's own."""

    def __init__(self, number: int) -> None:
        super().__init__(number, "ekc-worker")
        self.number = number


class Processes(Threads):
    """An executor whose threads wait for a process each. A process that dies costs its job alone
    (`BrokenExecutor`); its thread hires another for the next. Functions must be known by module and name."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self._own = threading.local()
        self._hired: list[Remote] = []
        self._shown: Shown = {}
        """Each worker has its warnings anew."""
        for _ in range(number):
            # They import while the run thinks about what to compile.
            self.submit(_ready)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See `Executor`."""
        return super().submit(self._elsewhere, partial(fn, **kwargs) if kwargs else fn, args)

    def _elsewhere(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        try:
            done: Done = self._remote().ask(Job(function, arguments), HUNG_S)
        except DeviceError as problem:
            warnings.warn(f"{problem}; what it was to do is left to the caller", RuntimeWarning, stacklevel=1)
            raise BrokenExecutor(str(problem)) from problem
        value: T = done.open(self._shown)
        return value

    def _remote(self) -> Remote:
        """The process of this thread."""
        if not hasattr(self._own, "remote"):
            number = len(self._hired)
            self._own.remote = Remote(f"worker {number}", partial(Child, number, "ekc.search.worker"))
            self._hired.append(self._own.remote)
        remote: Remote = self._own.remote
        return remote

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor`; the processes end with their last jobs, or with this one."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        for remote in self._hired if wait else ():
            remote.close()


def _ready() -> None:
    """The first job of every process: to import what the others need."""
    import ekc.devices.accesses
    import ekc.search.preparing  # noqa: F401
