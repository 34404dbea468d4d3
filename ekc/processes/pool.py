"""Who compiles: threads, or processes where a device leaves work in Python to whoever compiles.

NVRTC lets other threads run, Python does not: what a simulated device counts about a kernel has a core of its
own only in a process of its own. A worker is `python -m ekc.processes.jobs`, which imports what it needs while
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

from ekc.devices.device import CountingDevice, Device
from ekc.errors import DeviceError
from ekc.processes.child import ChildProcess, RemoteWorker
from ekc.processes.jobs import JOB_TIMEOUT_S, JobOutcome, ShownWarnings, WorkerJob

T = TypeVar("T")
MAX_WORKERS = 32
"""Processes at most, whatever was asked for: no round but the first of a long run has more trials to compile
(`rounds.py`), and each holds the memory of a Python of its own."""
MIN_TRIALS_FOR_PROCESSES = 32
"""Trials from which on processes earn their start: it takes each about two seconds of a core to import what
it needs, and spares the caller about a tenth of a second a trial."""
MIN_TRIALS_FOR_BACKGROUND_WORKER = 128
"""Trials from which on a process for half of each population earns its start: they are large enough then."""


@contextmanager
def open_background_worker(trials: int, executor: Executor | None = None) -> Iterator[RemoteWorker | None]:
    """A process for half of each population of a run of so many trials (`aside.py`); None where it would not
    help, and where the `executor` is the caller's own, or told to be one alone."""
    ours = executor is None or (isinstance(executor, WorkerThreads) and executor.worker_count > 1)
    if trials < MIN_TRIALS_FOR_BACKGROUND_WORKER or count_cores() < 2 or not ours:
        yield None
        return
    remote = RemoteWorker("the process aside", partial(ChildProcess, 0, "ekc.processes.jobs"))
    try:
        yield remote
    finally:
        remote.close()


@contextmanager
def open_worker_pool(device: Device, trials: int, worker_count: int | None = None) -> Iterator[Executor]:
    """So many workers (as many as there are cores, `MOST` at most) for a run of so many trials on a device,
    processes if they help; what still waits when the run ends is not compiled."""
    worker_count = min(worker_count or count_cores(), MAX_WORKERS)
    apart = isinstance(device, CountingDevice) and worker_count > 1 and trials >= MIN_TRIALS_FOR_PROCESSES
    workers = (WorkerProcesses if apart else WorkerThreads)(worker_count)
    try:
        yield workers
    finally:
        workers.shutdown(cancel_futures=True)


def count_cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerThreads(ThreadPoolExecutor):
    """An executor of ours, as it is told from a caller's own."""

    def __init__(self, worker_count: int) -> None:
        super().__init__(worker_count, "ekc-worker")
        self.worker_count = worker_count


class WorkerProcesses(WorkerThreads):
    """An executor whose threads wait for a process each. A process that dies costs its job alone
    (`BrokenExecutor`); its thread hires another for the next. Functions must be known by module and name."""

    def __init__(self, worker_count: int) -> None:
        super().__init__(worker_count)
        self._thread_local = threading.local()
        self._remotes: list[RemoteWorker] = []
        self._shown_warnings: ShownWarnings = {}
        """Each worker has its warnings anew."""
        for _ in range(worker_count):
            # They import while the run thinks about what to compile.
            self.submit(_import_job_modules)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See `Executor`."""
        return super().submit(self._run_in_process, partial(fn, **kwargs) if kwargs else fn, args)

    def _run_in_process(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        try:
            done: JobOutcome = self._get_remote().query(WorkerJob(function, arguments), JOB_TIMEOUT_S)
        except DeviceError as problem:
            warnings.warn(f"{problem}; what it was to do is left to the caller", RuntimeWarning, stacklevel=1)
            raise BrokenExecutor(str(problem)) from problem
        value: T = done.unwrap(self._shown_warnings)
        return value

    def _get_remote(self) -> RemoteWorker:
        """The process of this thread."""
        if not hasattr(self._thread_local, "remote"):
            number = len(self._remotes)
            self._thread_local.remote = RemoteWorker(
                f"worker {number}", partial(ChildProcess, number, "ekc.processes.jobs")
            )
            self._remotes.append(self._thread_local.remote)
        remote: RemoteWorker = self._thread_local.remote
        return remote

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor`; the processes end with their last jobs, or with this one."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        for remote in self._remotes if wait else ():
            remote.close()


def _import_job_modules() -> None:
    """The first job of every process: to import what the others need."""
    import ekc.devices.simulated.launch_counts
    import ekc.search.loop.compile_job  # noqa: F401
