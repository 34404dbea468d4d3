"""Executors of worker threads and of worker processes, and the job that such a process runs: a function with
its arguments.

NVRTC releases Python's interpreter lock, Python code does not: a job in Python has a core of its own only in
a process of its own. A worker is `python -m ekc.processes.pool INDEX MESSAGES LIFELINE`. Nothing of the
caller's `__main__` reaches it, and it ends with its parent, however that ends.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from ekc.errors import DeviceError, EkcError
from ekc.processes.child import ChildProcess, RemoteWorker, exit_with_parent

ShownWarnings = dict[str | tuple[str, type[Warning], int], int]
"""Warnings that were shown, in the form of `__warningregistry__`."""

JOB_TIMEOUT_S = 600.0
"""Seconds after which a job without a reply is given up; its process is ended."""


@dataclass(frozen=True)
class JobOutcome:
    """Result of a job: a value or an error, and the warnings."""

    value: Any
    error: Exception | None
    warnings: tuple[tuple[str, type[Warning], str, int], ...]
    """Text, category, file and line of each warning; the parent shows them."""

    def unwrap(self, shown: ShownWarnings) -> Any:
        """Return the value or raise the error; show the warnings that are not in `shown`."""
        for text, category, file, line in self.warnings:
            warnings.warn_explicit(text, category, file, line, registry=shown)
        if self.error is not None:
            raise self.error
        return self.value


def run_job(function: Callable[..., Any], arguments: tuple[Any, ...]) -> JobOutcome:
    """Call a function, which pickles by its module and name; the outcome has the exception that it raises."""
    value, error = None, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = function(*arguments)
        except Exception as problem:
            error = problem
            if not isinstance(problem, EkcError):
                # A bug: the traceback of the parent would end where the job was sent.
                problem.add_note(traceback.format_exc())
    return JobOutcome(value, error, tuple((str(w.message), w.category, w.filename, w.lineno) for w in caught))


def serve_jobs(connection: Connection) -> None:
    """Run jobs until the parent closes the connection."""
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        connection.send(run_job(*job))


def main(messages_fd: int, lifeline_fd: int) -> None:
    """Serve the parent that holds the other ends of these file descriptors."""
    exit_with_parent(lifeline_fd)
    serve_jobs(Connection(messages_fd))


T = TypeVar("T")


def count_cores(root: Path = Path("/")) -> int:
    """CPU cores that this process may use, at least 1: those of its affinity, and no more than the quota of
    its control group and of the groups above it, rounded up. The files of the kernel are below `root`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min([cores, *_read_cpu_quotas(root)])))


def _read_cpu_quotas(root: Path) -> Iterator[float]:
    """Cores of each quota: `cpu.max` of version 2 of control groups, `cpu.cfs_quota_us` of version 1."""
    mounted = root / "sys/fs/cgroup"
    for line in _read_words(root / "proc/self/cgroup", "\n"):
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        tops = [mounted / name for name in (controllers, "cpu")] if controllers else [mounted]
        # In a container the path may be that outside: the group itself is then at the top.
        for top in tops:
            for folder in (top / path.lstrip("/"), *(top / path.lstrip("/")).parents):
                if not folder.is_relative_to(top):
                    break
                words = _read_words(folder / "cpu.max") or [
                    *_read_words(folder / "cpu.cfs_quota_us"),
                    *_read_words(folder / "cpu.cfs_period_us"),
                ]
                if len(words) == 2 and all(w.isdigit() and int(w) for w in words):
                    yield int(words[0]) / int(words[1])


def _read_words(file: Path, separator: str | None = None) -> list[str]:
    """The words of a small file; none where it cannot be read."""
    try:
        return [word for word in file.read_text().split(separator) if word]
    except (OSError, ValueError):
        return []


def make_job_worker(name: str, index: int = 0) -> RemoteWorker:
    """A worker process that runs jobs; messages call it by its name."""
    return RemoteWorker(name, partial(ChildProcess, "ekc.processes.pool", index))


class WorkerThreads(ThreadPoolExecutor):
    """An executor that ekc made, as opposed to one of the caller."""

    def __init__(self, worker_count: int) -> None:
        super().__init__(worker_count, "ekc-worker")
        self.worker_count = worker_count


class WorkerProcesses(WorkerThreads):
    """An executor whose threads wait for a process each. A process that ends early costs its own job alone
    (`BrokenExecutor`); the thread starts another for the next job. Functions must pickle by module and
    name."""

    def __init__(
        self,
        worker_count: int,
        import_modules: Callable[[], None] | None = None,
        timeout_s: float = JOB_TIMEOUT_S,
    ) -> None:
        """`import_modules` is the first job of every process: it imports the modules that other jobs need,
        while the caller prepares those jobs. A job without a reply within `timeout_s` is given up, and its
        process is ended."""
        super().__init__(worker_count)
        self._timeout_s = timeout_s
        self._thread_local = threading.local()
        self._remotes: list[RemoteWorker] = []
        self._is_stopped = False
        self._shown_warnings: ShownWarnings = {}
        """Warnings of all workers that were shown: each worker raises its own."""
        if import_modules is not None:
            for _ in range(worker_count):
                self.submit(import_modules)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See `Executor`."""
        return super().submit(self._run_in_process, partial(fn, **kwargs) if kwargs else fn, args)

    def _run_in_process(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        try:
            outcome: JobOutcome = self._get_remote().query((function, arguments), self._timeout_s)
        except DeviceError as problem:
            if not self._is_stopped:
                warnings.warn(f"{problem}; its job is left to the caller", RuntimeWarning, stacklevel=1)
            raise BrokenExecutor(str(problem)) from problem
        value: T = outcome.unwrap(self._shown_warnings)
        return value

    def _get_remote(self) -> RemoteWorker:
        """The worker of this thread."""
        if not hasattr(self._thread_local, "remote"):
            number = len(self._remotes)
            self._thread_local.remote = make_job_worker(f"worker {number}", number)
            self._remotes.append(self._thread_local.remote)
        remote: RemoteWorker = self._thread_local.remote
        return remote

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See `Executor`; processes end with their last jobs, or with this process."""
        super().shutdown(wait, cancel_futures=cancel_futures)
        for remote in self._remotes if wait else ():
            remote.close()

    def stop(self) -> None:
        """Drop all jobs, and end the processes in the middle of theirs. A job that runs ends with
        `BrokenExecutor`."""
        self._is_stopped = True
        self.shutdown(wait=False, cancel_futures=True)
        for remote in self._remotes:
            remote.kill()


if __name__ == "__main__":
    # Not the functions of this module: outcomes must pickle as classes of `ekc.processes.pool`, not of
    # `__main__`.
    from ekc.processes import pool

    pool.main(*map(int, sys.argv[2:]))
