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

import pytest

import ekc
from ekc import devices
from ekc.codegen import nvrtc
from ekc.codegen.nvrtc import NvrtcError
from ekc.devices.simulated.launch_counts import LAUNCH_PROFILES, profile_kernel
from ekc.processes.pool import WorkerProcesses
from ekc.search.loop import compile_job
from ekc.search.loop.compile_job import (
    MAX_WORKERS,
    MIN_TRIALS_FOR_PROCESSES,
    open_worker_pool,
    read_versions,
    run_compile_job,
)
from ekc.search.sketches.naive import make_naive_schedule
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


def test_what_a_worker_prepares_is_what_is_prepared_here(two: WorkerProcesses) -> None:
    device = devices.open("a100")
    asked = (
        make_naive_schedule(OP).to_json(),
        device.arch,
        device.limits,
        device.collect_facts,
        read_versions(),
    )
    there, here = two.submit(run_compile_job, *asked).result(), run_compile_job(*asked)
    assert there == here
    kernel = there.unwrap(read_versions())
    assert kernel.facts == here.unwrap(read_versions()).facts == {LAUNCH_PROFILES: profile_kernel(kernel)}
    one, other, bare = devices.open("a100"), devices.open("a100"), replace(kernel, facts={})
    assert one.time(kernel) == other.time(bare)
    assert one.meter(kernel) == other.meter(bare)


def test_a_simulated_device_reads_the_facts_of_a_kernel(two: WorkerProcesses) -> None:
    device, op = devices.open("a100"), ekc.matmul(64, 64, 4096)
    here = read_versions()
    asked = device.arch, device.limits, device.collect_facts, here
    small, large = (
        run_compile_job(make_naive_schedule(one).to_json(), *asked).unwrap(here) for one in (OP, op)
    )
    swapped = replace(small, facts=large.facts)
    assert device.time(swapped).latency_s > 2 * devices.open("a100").time(small).latency_s


def test_errors_and_warnings_travel(two: WorkerProcesses) -> None:
    with pytest.raises(NvrtcError, match="error: ") as refused:
        two.submit(nvrtc.compile, "int f( {").result()
    assert refused.value.log
    with pytest.raises(ZeroDivisionError) as bug:
        two.submit(divmod, 1, 0).result()
    assert "in run_job" in "".join(bug.value.__notes__), "a bug's note says where it was"
    with pytest.warns(UserWarning, match="all is well"):
        two.submit(warnings.warn, "all is well").result()


def test_a_worker_that_dies_costs_its_own_job() -> None:
    with WorkerProcesses(2) as pool:
        with pytest.warns(RuntimeWarning, match="SIGKILL"), pytest.raises(BrokenExecutor, match="SIGKILL"):
            pool.submit(signal.raise_signal, signal.SIGKILL).result()
        assert [pool.submit(int, str(n)).result() for n in range(8)] == list(range(8))


def test_a_warning_of_every_worker_is_shown_once(two: WorkerProcesses) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(6):
            two.submit(warnings.warn, "nothing is kept").result()
    assert len(seen) == 1


def test_a_host_without_room_for_processes_costs_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", full)
    open_before = len(os.listdir("/proc/self/fd"))
    with WorkerProcesses(1) as pool:
        for _ in range(3):
            with pytest.warns(RuntimeWarning, match="temp"), pytest.raises(BrokenExecutor, match="temp"):
                pool.submit(int).result()
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_the_folder_a_script_runs_in_shadows_no_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inspect.py").write_text("raise RuntimeError")
    monkeypatch.chdir(tmp_path)
    with WorkerProcesses(1) as pool:
        limits, here = devices.open("a100").limits, read_versions()
        answer = pool.submit(
            run_compile_job, make_naive_schedule(OP).to_json(), "sm_80", limits, None, here
        ).result()
        assert answer.unwrap(here)


def test_none_is_left_when_the_executor_closes() -> None:
    with open_worker_pool(devices.open("a100"), MIN_TRIALS_FOR_PROCESSES, 2) as pool:
        assert isinstance(pool, WorkerProcesses)
        pids = {pool.submit(os.getpid).result() for _ in range(20)}
    assert os.getpid() not in pids
    wait_for_the_end_of(pids)


@pytest.mark.parametrize("asked", [None, 1000])
def test_no_more_processes_than_a_round_can_use(asked: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted where they are asked for: none is started."""
    numbers: list[int] = []

    def started(number: int, _: object) -> ThreadPoolExecutor:
        numbers.append(number)
        return ThreadPoolExecutor(1)

    monkeypatch.setattr(compile_job, "WorkerProcesses", started)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(200), raising=False)
    with open_worker_pool(devices.open("a100"), MIN_TRIALS_FOR_PROCESSES, asked):
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


def test_a_script_needs_no_guard_and_workers_die_with_it(tmp_path: Path) -> None:
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


def test_a_short_run_has_threads() -> None:
    with open_worker_pool(devices.open("a100"), MIN_TRIALS_FOR_PROCESSES - 1, 2) as pool:
        assert not isinstance(pool, WorkerProcesses)
