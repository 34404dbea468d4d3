"""Compiling the schedules of a run, ahead of their measurement, in an executor.

A job is a pure function of plain values: it may run in another thread, in another process, on another
machine, or in this thread when its kernel is requested. Its result names the versions that made the kernel,
so that a worker with another compiler is found before its kernel is measured."""

from __future__ import annotations

import platform
import traceback
import warnings
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ekc.argument_checks import format_value
from ekc.codegen import generate, nvrtc
from ekc.codegen.compiled import CompiledKernel
from ekc.codegen.generate import compile_schedule
from ekc.devices.device import Device, FactCollector
from ekc.errors import EkcError, ToolchainError
from ekc.ir.hardware.target import LaunchLimits
from ekc.ir.schedule.schedule import Schedule
from ekc.processes.pool import JOB_TIMEOUT_S, WorkerProcesses, WorkerThreads, count_cores
from ekc.version import __version__

MAX_WORKERS = 32
"""Worker processes at most. Only the first round of a long run has more trials to compile
(`ekc.search.loop.rounds`), and each process has the memory of a Python interpreter."""
MIN_TRIALS_FOR_PROCESSES = 32
"""Trials of a run from which processes pay: each needs about two seconds of a core to import its modules, and
saves about a tenth of a second a trial."""


@dataclass(frozen=True)
class CompileResult:
    """The result of a compile job. A worker with other versions returns the versions and its host only."""

    versions: str
    """Versions of the programs that make a kernel of a schedule and collect its facts."""
    host: str
    """Name of the worker's machine."""
    kernel: CompiledKernel | None = None
    error: Exception | None = None

    def unwrap(self, local_versions: str) -> CompiledKernel:
        """Return the kernel with its facts. Raises the exception of the compile, and `ToolchainError` if the
        worker has other versions than `local_versions`."""
        if self.versions != local_versions:
            raise ToolchainError(
                f"executor: a worker on {self.host} has {self.versions}, and this process {local_versions}; "
                "install the same versions on both"
            )
        if self.error is not None:
            raise self.error
        assert self.kernel is not None  # without an error there is a kernel
        return self.kernel


def read_versions() -> str:
    """Read the versions of this process: `NVRTC 13.5, generator 7, ekc 0.1.0`."""
    try:
        compiler = nvrtc.version()
    except EkcError:
        compiler = "not installed"
    return f"NVRTC {compiler}, generator {generate.GENERATOR}, ekc {__version__}"


def compile_schedule_json(schedule_json: str, arch: str, limits: LaunchLimits) -> CompiledKernel:
    """Compile a schedule given as JSON."""
    return compile_schedule(Schedule.from_json(schedule_json), arch, limits)


def run_compile_job(
    schedule_json: str,
    arch: str,
    limits: LaunchLimits,
    collect_facts: FactCollector | None,
    required_versions: str,
) -> CompileResult:
    """Compile a schedule given as JSON, and collect the facts that its device needs. If collecting them
    fails, the device collects them when it times the kernel and raises the error. A process with other
    versions than `required_versions` compiles nothing. Exceptions of the compile are part of the result."""
    here, host = read_versions(), platform.node()
    if here != required_versions:
        return CompileResult(here, host)
    try:
        kernel = compile_schedule_json(schedule_json, arch, limits)
        return CompileResult(here, host, _add_facts(kernel, collect_facts))
    except EkcError as problem:
        return CompileResult(here, host, error=problem)
    except Exception as problem:
        # A bug. The parent's traceback would end where the job was submitted.
        problem.add_note(traceback.format_exc())
        return CompileResult(here, host, error=problem)


def _add_facts(kernel: CompiledKernel, collect_facts: FactCollector | None) -> CompiledKernel:
    try:
        return replace(kernel, facts=collect_facts(kernel)) if collect_facts else kernel
    except EkcError:
        return kernel


_DASK_LOSSES = {"KilledWorker", "NoValidWorkerError", "NoWorkerError", "CommClosedError"}
"""Errors of Dask, which need not be installed: a job whose workers died, one that no worker may take, and a
lost connection. A lost scheduler cancels all jobs (`CancelledError`)."""


def _is_worker_loss(problem: Exception) -> bool:
    """Whether an exception of a job says that a worker is gone or silent, and nothing of the job."""
    names = {kind.__name__ for kind in type(problem).__mro__}
    return isinstance(problem, BrokenExecutor | CancelledError | TimeoutError) or bool(names & _DASK_LOSSES)


def _describe_loss(problem: Exception) -> str:
    """Describe on one line why a worker will not answer."""
    if isinstance(problem, TimeoutError) and not str(problem):
        return f"no answer within {JOB_TIMEOUT_S:g} s"
    if isinstance(problem, BrokenExecutor | ToolchainError):
        return " ".join(str(problem).removeprefix("executor: ").split())
    return _describe_error(problem)


@dataclass
class KernelCompiler:
    """The compile jobs of one run: a schedule is compiled once, in an executor after `submit`, else in this
    thread when its kernel is requested.

    A worker that dies costs no run: its kernel is compiled in this process, and so are all later ones if the
    executor died with it.
    """

    executor: Executor
    device: Device
    _futures: dict[str, Future[CompileResult]] = field(default_factory=dict)
    """Jobs that were not waited for yet, by digest of their schedule."""
    _results: dict[str, CompileResult] = field(default_factory=dict)
    """Answers of workers."""
    _kernels: dict[str, CompiledKernel] = field(default_factory=dict)
    _is_lost: bool = False
    """Whether the executor takes no more jobs of this run."""

    def submit(self, schedule: Schedule) -> None:
        """Start compiling a schedule in the executor. Raises `ToolchainError` if it cannot take jobs, unless
        it could before: then kernels are compiled in this process, with a warning."""
        if self._is_lost:
            return
        try:
            self._futures[schedule.digest] = self._submit_job(schedule)
        except BrokenExecutor as problem:
            self._note_loss(problem)
        except ToolchainError as problem:
            if not self._results:
                raise
            self._note_loss(problem)

    def _submit_job(self, schedule: Schedule) -> Future[CompileResult]:
        """Start compiling, and collecting the facts that the device needs. Raises `BrokenExecutor` as the
        executor does, `ToolchainError` if it takes no jobs."""
        device = self.device
        arguments = schedule.to_json(), device.arch, device.limits, device.collect_facts, read_versions()
        try:
            future = self.executor.submit(run_compile_job, *arguments)
        except BrokenExecutor:
            raise
        except Exception as problem:
            raise ToolchainError(
                f"executor: it takes no jobs ({_describe_error(problem)}); give one that is open"
            ) from problem
        if not callable(getattr(future, "result", None)):
            raise ToolchainError(
                f"executor: its submit() returned {format_value(future)}, which has no result(); "
                "give a concurrent.futures.Executor"
            )
        return future

    def get_kernel(self, schedule: Schedule) -> CompiledKernel:
        """Return the kernel of a schedule. Raises the exception of the compile, and `ToolchainError` for a
        worker that cannot do the job or has other versions than this process."""
        digest = schedule.digest
        self._wait_for_worker(digest)
        if digest not in self._kernels:
            result = self._results.get(digest)
            self._kernels[digest] = (
                result.unwrap(read_versions())
                if result
                else compile_schedule_json(schedule.to_json(), self.device.arch, self.device.limits)
            )
        return self._kernels[digest]

    def _wait_for_worker(self, digest: str) -> None:
        """Wait for the worker, if a job was submitted. That it died, was stopped, or takes longer than the
        timeout is no error of this schedule: its kernel is then compiled in this thread."""
        # A future of Dask keeps the result in the memory of a worker, so it is dropped here.
        future = self._futures.pop(digest, None)
        if future is None:
            return
        # A pool of ekc has a timeout of its own.
        timeout_s = None if isinstance(self.executor, WorkerThreads) else JOB_TIMEOUT_S
        try:
            result = future.result(0.0 if self._is_lost else timeout_s)
        except Exception as problem:
            if _is_worker_loss(problem):
                self._note_loss(problem)
                return
            # `run_compile_job` itself raises nothing, so this worker could not call it.
            raise ToolchainError(
                f"executor: a worker did not answer ({_describe_error(problem)}); "
                f"it needs {read_versions()}, as this process has"
            ) from problem
        if not isinstance(result, CompileResult):
            raise ToolchainError(
                f"executor: a worker answered {format_value(result)}, which is no kernel; "
                "submit(f, *x) must return a future whose result() is f(*x)"
            )
        self._results[digest] = result

    def _note_loss(self, problem: Exception) -> None:
        """Warn of a lost worker. Other workers of Dask go on; any other executor is lost with it, but for a
        pool of ekc, which starts a new worker and warns itself."""
        if isinstance(self.executor, WorkerThreads) or self._is_lost:
            return
        self._is_lost = isinstance(problem, BrokenExecutor | CancelledError | TimeoutError | ToolchainError)
        kernels = "kernels are" if self._is_lost else "its kernel is"
        warnings.warn(
            f"executor: {_describe_loss(problem)}; {kernels} compiled in this process",
            RuntimeWarning,
            stacklevel=1,
        )


def _describe_error(problem: Exception) -> str:
    """Type and text of an exception on one line."""
    return " ".join(f"{type(problem).__name__}: {problem}".split())


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
    """Import the modules that compile jobs need, beside this one."""
    import ekc.devices.simulated.launch_counts  # noqa: F401
