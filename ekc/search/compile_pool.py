"""Workers of one run: threads, or processes where compile jobs also count what a kernel executes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from ekc.devices.device import Device
from ekc.processes.pool import WorkerProcesses, WorkerThreads, count_cores

MAX_WORKERS = 32
"""Worker processes at most. Only the first round of a long run has more trials to compile
(`ekc.search.loop.generations`), and each process has the memory of a Python interpreter."""
MIN_TRIALS_FOR_PROCESSES = 32
"""Trials of a run from which processes pay: each needs about two seconds of a core to import its modules, and
saves about a tenth of a second a trial."""


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
