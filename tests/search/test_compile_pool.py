"""Processes that compile: what they answer is what would be answered here, and none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ekc
from ekc import devices
from ekc.codegen import nvrtc
from ekc.codegen.nvrtc import NvrtcError
from ekc.devices.simulated.launch_counts import LAUNCH_PROFILES, profile_kernel
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.processes.pool import WorkerProcesses
from ekc.search.loop import compile_job
from ekc.search.loop.compile_job import (
    MAX_WORKERS,
    MIN_TRIALS_FOR_PROCESSES,
    open_worker_pool,
    read_versions,
    run_compile_job,
)
from tests.processes.test_child import alive

OP = ekc.matmul(64, 64, 64)


@pytest.fixture(scope="module")
def two() -> Iterator[WorkerProcesses]:
    with WorkerProcesses(2) as pool:
        yield pool


def wait_for_the_end_of(pids: Iterable[int]) -> None:
    """No limit of ours: a process that stays would hang this test, which is a failure too."""
    while any(alive(pid) for pid in pids):
        time.sleep(0.01)


def describe_job(op: ekc.Operator) -> tuple[Any, ...]:
    """Arguments of the compile job of a naive schedule."""
    device = devices.open("a100")
    return (
        *(make_naive_schedule(op).to_json(), device.arch, device.limits),
        *(device.collect_facts, read_versions()),
    )


def test_worker_prepares_what_this_process_prepares(two: WorkerProcesses) -> None:
    job = describe_job(OP)
    there, here = two.submit(run_compile_job, *job).result(), run_compile_job(*job)
    assert there == here
    kernel = there.unwrap(read_versions())
    assert kernel.facts == here.unwrap(read_versions()).facts == {LAUNCH_PROFILES: profile_kernel(kernel)}
    one, other, bare = devices.open("a100"), devices.open("a100"), replace(kernel, facts={})
    assert one.time(kernel) == other.time(bare)
    assert one.meter(kernel) == other.meter(bare)


def test_simulated_device_reads_the_facts_of_a_kernel() -> None:
    small, large = (
        run_compile_job(*describe_job(op)).unwrap(read_versions()) for op in (OP, ekc.matmul(64, 64, 4096))
    )
    one, other = devices.open("a100"), devices.open("a100")
    assert one.time(replace(small, facts=large.facts)).latency_s > 2 * other.time(small).latency_s


def test_errors_and_warnings_travel(two: WorkerProcesses) -> None:
    with pytest.raises(NvrtcError, match="error: ") as refused:
        two.submit(nvrtc.compile, "int f( {").result()
    assert refused.value.log
    with pytest.raises(ZeroDivisionError) as bug:
        two.submit(divmod, 1, 0).result()
    assert "in run_job" in "".join(bug.value.__notes__), "a bug's note says where it was"
    with pytest.warns(UserWarning, match="all is well"):
        two.submit(warnings.warn, "all is well").result()


def test_dead_worker_costs_its_own_job() -> None:
    with WorkerProcesses(2) as pool:
        with pytest.warns(RuntimeWarning, match="SIGKILL"), pytest.raises(BrokenExecutor, match="SIGKILL"):
            pool.submit(signal.raise_signal, signal.SIGKILL).result()
        assert [pool.submit(int, str(n)).result() for n in range(8)] == list(range(8))


def test_warning_of_every_worker_is_shown_once(two: WorkerProcesses) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(6):
            two.submit(warnings.warn, "nothing is kept").result()
    assert len(seen) == 1


def test_host_without_room_for_processes_costs_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", full)
    open_before = len(os.listdir("/proc/self/fd"))
    with WorkerProcesses(1) as pool:
        for _ in range(3):
            with pytest.warns(RuntimeWarning, match="temp"), pytest.raises(BrokenExecutor, match="temp"):
                pool.submit(int).result()
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_folder_of_a_script_shadows_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inspect.py").write_text("raise RuntimeError")
    monkeypatch.chdir(tmp_path)
    with WorkerProcesses(1) as pool:
        assert pool.submit(run_compile_job, *describe_job(OP)).result().unwrap(read_versions())


def test_workers_end_when_the_executor_closes() -> None:
    with open_worker_pool(devices.open("a100"), MIN_TRIALS_FOR_PROCESSES, 2) as pool:
        assert isinstance(pool, WorkerProcesses)
        pids = {pool.submit(os.getpid).result() for _ in range(20)}
    assert os.getpid() not in pids
    wait_for_the_end_of(pids)


def test_workers_are_ended_in_the_middle_of_a_job() -> None:
    pool = WorkerProcesses(1)
    pid = pool.submit(os.getpid).result()
    hung, waiting = pool.submit(time.sleep, 600.0), pool.submit(int)
    while not hung.running():
        time.sleep(0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.stop()
        with pytest.raises(BrokenExecutor, match="SIGKILL"):
            hung.result()
    assert waiting.cancelled()
    wait_for_the_end_of([pid])


@pytest.mark.parametrize("count", [None, 1000])
def test_process_count_is_limited_by_a_round(count: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted where they are asked for: none is started."""
    numbers: list[int] = []

    def started(number: int, _: object) -> ThreadPoolExecutor:
        numbers.append(number)
        return ThreadPoolExecutor(1)

    monkeypatch.setattr(compile_job, "WorkerProcesses", started)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(200), raising=False)
    with open_worker_pool(devices.open("a100"), MIN_TRIALS_FOR_PROCESSES, count):
        pass
    assert numbers == [MAX_WORKERS]


SCRIPT = """
import os, sys, time
import ekc
from ekc.processes.pool import WorkerProcesses
print("begun", flush=True)
result = ekc.tune(ekc.matvec(64, 64), target="a100", trials=4, progress=False)
assert result.best.ok
pool = WorkerProcesses(2)
print(*{pool.submit(os.getpid).result() for _ in range(20)}, flush=True)
pool.submit(time.sleep, 600)
time.sleep(600)
"""


def test_script_needs_no_guard_and_workers_die_with_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        first, second = child.stdout.readline(), child.stdout.readline()
        child.kill()
        assert child.stdout.read() == "", "no worker runs the script, or holds its output open"
    assert first == "begun\n"
    pids = [int(pid) for pid in second.split()]
    assert pids
    wait_for_the_end_of(pids)


def test_short_run_has_threads() -> None:
    with open_worker_pool(devices.open("a100"), MIN_TRIALS_FOR_PROCESSES - 1, 2) as pool:
        assert not isinstance(pool, WorkerProcesses)
