"""Workers of one run: threads, or processes where compile jobs also count what a kernel executes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from ekc.devices.device import Device
from ekc.processes.child import RemoteWorker
from ekc.processes.pool import WorkerProcesses, WorkerThreads, count_cores, make_job_worker

MAX_WORKERS = 32
"""Worker processes at most. Only the first round of a long run has more trials to compile
(`ekc.search.loop.generations`), and each process has the memory of a Python interpreter."""
MIN_TRIALS_FOR_PROCESSES = 32
"""Trials of a run from which processes pay: each needs about two seconds of a core to import its modules, and
saves about a tenth of a second a trial."""
MIN_TRIALS_FOR_BACKGROUND_WORKER = 128
"""Trials of a run from which a process for half of each population pays: populations are large enough
then."""


@contextmanager
def open_background_worker(trials: int, executor: Executor | None = None) -> Iterator[RemoteWorker | None]:
    """A process for half of each population of a run (`ekc.search.space.background_worker`). None where it
    does not pay, where the `executor` is the caller's own, and where the executor has one worker."""
    is_own = executor is None or (isinstance(executor, WorkerThreads) and executor.worker_count > 1)
    if trials < MIN_TRIALS_FOR_BACKGROUND_WORKER or count_cores() < 2 or not is_own:
        yield None
        return
    remote = make_job_worker("the background process")
    try:
        yield remote
    finally:
        remote.close()


@contextmanager
def open_worker_pool(device: Device, trials: int, worker_count: int | None = None) -> Iterator[Executor]:
    """The executor of a run with so many trials on a device. The default number of workers is the number of
    cores, `MAX_WORKERS` at most. Jobs that still wait when the run ends are dropped."""
    worker_count = min(worker_count or count_cores(), MAX_WORKERS)
    pool: WorkerThreads
    if device.collect_facts is not None and worker_count > 1 and trials >= MIN_TRIALS_FOR_PROCESSES:
        pool = WorkerProcesses(worker_count, _import_job_modules)
    else:
        pool = WorkerThreads(worker_count)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _import_job_modules() -> None:
    """Import the modules that compile jobs need."""
    import ekc.devices.simulated.launch_counts
    import ekc.search.loop.compile_job  # noqa: F401
