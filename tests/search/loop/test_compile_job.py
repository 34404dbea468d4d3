"""A worker with another compiler, generator or ekc is refused in one line, and nothing of its work is filed.

The workers are real processes of each kind of executor, changed from within.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ekc
from ekc import devices
from ekc.codegen import nvrtc
from ekc.codegen.generate import GENERATOR
from ekc.errors import ToolchainError
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.processes.pool import WorkerProcesses
from ekc.search.data.events import EventListener, TuningEvent
from ekc.search.loop import compile_job
from ekc.search.loop.compile_job import read_versions
from ekc.search.tuning_result import TuningResult
from ekc.version import __version__
from tests.search.helpers import MV, tune, winner

ROOT = Path(__file__).parents[3]
HERE = read_versions()
SMALL = ekc.matvec(8, 8)

PATCH = "from unittest.mock import patch\n"
RESTORE = PATCH + "patch.stopall()"
OTHER_NVRTC = PATCH + "patch('ekc.codegen.nvrtc.version', lambda: '10.1').start()"
OTHER_GENERATOR = PATCH + "patch('ekc.codegen.generate.GENERATOR', -1).start()"
OLD_NVRTC_THAT_REFUSES = """
from unittest.mock import patch
from ekc.errors import CompileError
unknown = CompileError('kernel.cu(1): error: an instruction that this NVRTC does not know')
patch('ekc.codegen.nvrtc.version', lambda: '10.2').start()
patch('ekc.search.loop.compile_job.compile_schedule', side_effect=unknown).start()
"""
NO_NVRTC = """
from unittest.mock import patch
from ekc.errors import EkcError
missing = EkcError('NVRTC cannot be loaded: pip install nvidia-cuda-nvrtc')
patch('ekc.codegen.nvrtc._library', side_effect=missing).start()
"""
OTHER_JOB = (
    PATCH + "patch('ekc.search.loop.compile_job.run_compile_job', lambda schedule, arch: None).start()"
)


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """Processes that others start import ekc from this checkout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))
        yield


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client of a Dask cluster of one process."""
    distributed = pytest.importorskip(
        "distributed", reason="Dask is not installed (pip install distributed): its executors are not tested"
    )
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def spawned() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def change_worker(workers: Executor, code: str) -> None:
    """Run a text in the one worker."""
    workers.submit(exec, code, {}).result()


def refusal(workers: Executor, file: Path, op: ekc.Operator = SMALL) -> str:
    """The line that refuses a run; the naive kernel alone, which was compiled here, is on file."""
    with pytest.raises(ToolchainError) as caught:
        tune(op, executor=workers, records=file)
    assert "\n" not in str(caught.value)
    with sqlite3.connect(file) as connection:
        found = set(connection.execute("select kind, schedule_digest from trials"))
    assert found == {(kind, make_naive_schedule(op).digest) for kind in ("timing", "metering")}
    return str(caught.value)


def line_about(
    compiler: str = nvrtc.version(), generator: int = GENERATOR, version: str = __version__
) -> str:
    """The line about a worker with these versions."""
    return (
        f"executor: a worker on {platform.node()} has NVRTC {compiler}, generator {generator}, "
        f"ekc {version}, and this process {HERE}; install the same versions on both"
    )


def test_worker_without_compiler_is_refused(tmp_path: Path) -> None:
    with spawned() as workers:
        change_worker(workers, NO_NVRTC)
        assert refusal(workers, tmp_path / "r.db") == line_about("not installed")


def test_compile_failures_of_another_compiler_are_not_stored(tmp_path: Path) -> None:
    """As failures of schedules they would be found there by later runs."""
    with WorkerProcesses(1) as workers:
        change_worker(workers, OLD_NVRTC_THAT_REFUSES)
        assert refusal(workers, tmp_path / "r.db") == line_about("10.2")


@pytest.mark.slow
def test_worker_with_upgraded_ekc_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that start later import the new one."""
    package = tmp_path / "site" / "ekc"
    package.mkdir(parents=True)
    for part in (ROOT / "ekc").iterdir():
        if part.name not in ("version.py", "__pycache__"):
            (package / part.name).symlink_to(part)
    (package / "version.py").write_text('__version__ = "99.1"\n')
    monkeypatch.syspath_prepend(package.parent)
    with WorkerProcesses(1) as workers:
        assert refusal(workers, tmp_path / "r.db") == line_about(version="99.1")


@pytest.mark.slow
@pytest.mark.parametrize("as_executor", [False, True], ids=["client", "executor"])
def test_dask_worker_with_other_versions_is_refused(client: Any, as_executor: bool, tmp_path: Path) -> None:
    # Dask answers a question that it was asked before from memory.
    op, change = (ekc.matvec(128, 64), OTHER_GENERATOR) if as_executor else (ekc.matvec(64, 64), OTHER_NVRTC)
    line = line_about(generator=-1) if as_executor else line_about("10.1")
    change_worker(client, change)
    try:
        assert refusal(client.get_executor() if as_executor else client, tmp_path / "r.db", op) == line
    finally:
        change_worker(client, RESTORE)


@pytest.mark.slow
def test_dask_worker_with_same_versions_finds_same_winner(client: Any, plain_run: TuningResult) -> None:
    assert winner(tune(executor=client)) == winner(plain_run)


@pytest.mark.slow
def test_dask_worker_with_older_job_is_refused(client: Any, tmp_path: Path) -> None:
    """As one of an older ekc."""
    change_worker(client, OTHER_JOB)
    try:
        line = refusal(client, tmp_path / "r.db", ekc.matvec(64, 128))
    finally:
        change_worker(client, RESTORE)
    assert line.startswith("executor: a worker did not answer (TypeError: ")
    assert line.endswith(f"; it needs {HERE}, as this process has")


class Other(ThreadPoolExecutor):
    """It answers every job by the same value."""

    def __init__(self, answer: object, as_future: bool) -> None:
        super().__init__(1)
        self.answer, self.as_future = answer, as_future

    def submit(self, *_: object, **__: object) -> Any:
        return super().submit(lambda: self.answer) if self.as_future else self.answer


NO_KERNEL = (
    "a worker answered {!r}, which is no kernel; submit(f, *x) must return a future whose result() is f(*x)"
)
NO_FUTURE = "its submit() returned {!r}, which has no result(); give a concurrent.futures.Executor"


@pytest.mark.parametrize(
    ("answer", "as_future"),
    [*((x, True) for x in ("a text", None, (1, 2))), *((x, False) for x in ("a text", None))],
)
def test_executor_with_other_results_is_refused(answer: object, as_future: bool, tmp_path: Path) -> None:
    with Other(answer, as_future) as workers:
        line = refusal(workers, tmp_path / "r.db")
    assert line == "executor: " + (NO_KERNEL if as_future else NO_FUTURE).format(answer)


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, spawned, WorkerProcesses])
def test_closed_executor_is_refused(kind: Callable[..., Executor], tmp_path: Path) -> None:
    workers = spawned() if kind is spawned else kind(1)
    workers.shutdown(cancel_futures=True)
    assert refusal(workers, tmp_path / "r.db") == (
        "executor: it takes no jobs (RuntimeError: cannot schedule new futures after shutdown); "
        "give one that is open"
    )


def test_broken_pool_costs_no_run(plain_run: TuningResult) -> None:
    """Its answers to come and its later jobs are done here."""
    with spawned() as workers:
        with pytest.raises(BrokenExecutor):
            workers.submit(os._exit, 1).result()
        with pytest.warns(RuntimeWarning, match="executor: .*; kernels are compiled in this process"):
            broken = tune(executor=workers)
    assert winner(broken) == winner(plain_run)


# Workers that are killed or fall silent while a run waits for them


def call_on_first_trial(action: Callable[[], object]) -> EventListener:
    """A callback of a run: the action, once, after the first kernel that a worker compiled was timed."""
    done: list[object] = []

    def listen(event: TuningEvent) -> bool | None:
        if event.name == "trial" and not done:
            done.append(action() or True)

    return listen


def test_killed_process_of_a_pool_costs_no_run(plain_run: TuningResult) -> None:
    """The pool breaks with its process: the kernels to come are compiled here."""
    with spawned() as workers:

        def kill() -> None:
            for pid in list(workers._processes):
                os.kill(pid, signal.SIGKILL)

        with pytest.warns(RuntimeWarning, match="terminated abruptly.*; kernels are compiled") as seen:
            result = tune(executor=workers, callback=call_on_first_trial(kill))
    assert winner(result) == winner(plain_run)
    assert len([w for w in seen if "executor:" in str(w.message)]) == 1


def test_executor_that_is_shut_down_in_mid_run_costs_no_run(plain_run: TuningResult) -> None:
    workers = ThreadPoolExecutor(1)
    stop = partial(workers.shutdown, cancel_futures=True)
    with pytest.warns(RuntimeWarning, match="executor: .*; kernels are compiled in this process"):
        result = tune(executor=workers, callback=call_on_first_trial(stop))
    assert winner(result) == winner(plain_run)


class Silent(ThreadPoolExecutor):
    """It never answers, as Dask without a worker left."""

    def submit(self, *_: object, **__: object) -> Any:
        return Future()


def test_silent_executor_costs_no_run(plain_run: TuningResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_job, "JOB_TIMEOUT_S", 0.1)
    with pytest.warns(
        RuntimeWarning, match="no answer within 0.1 s; kernels are compiled in this process"
    ) as seen:
        result = tune(executor=Silent())
    assert winner(result) == winner(plain_run)
    assert len([w for w in seen if "executor:" in str(w.message)]) == 1


def test_bug_in_worker_is_raised_with_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise ZeroDivisionError("a bug in the generator")

    monkeypatch.setattr(compile_job, "compile_schedule", crash)
    answer = compile_job.run_compile_job(
        make_naive_schedule(MV).to_json(), "sm_80", devices.open("a100").limits, None, HERE
    )
    with pytest.raises(ZeroDivisionError, match="a bug in the generator") as bug:
        answer.unwrap(HERE)
    assert "in crash" in "".join(bug.value.__notes__)
