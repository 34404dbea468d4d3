"""Real worker processes that hang, die, or lose their parent."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ekc
from ekc.devices.cuda.gpu import RemoteKernelRunner
from ekc.devices.cuda.library_kernel import LibraryKernel
from ekc.devices.cuda.messages import TimingRules, WorkerRequest, make_request
from ekc.errors import DeviceError
from ekc.ir.schedule.naive import make_naive_schedule
from ekc.processes.child import ChildProcess, RemoteWorker, WorkerTimeouts
from tests.scripted.cuda.driver import ScriptedDriver
from tests.scripted.cuda.forked_worker import Forked

HUNG = "tests.scripted.cuda.hung_worker"
PARENT = f"""
import time
from ekc.processes.child import ChildProcess
child = ChildProcess("{HUNG}")
print(child._process.pid, flush=True)
time.sleep(3600)
"""


def alive(pid: int) -> bool:
    """Whether a process runs: it exists and is no zombie of another parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class HungWorkers(list[ChildProcess]):
    """The workers that were started."""

    def start(self) -> ChildProcess:
        self.append(ChildProcess(HUNG))
        return self[-1]


def start_parent(script: str) -> subprocess.Popen[str]:
    """A process that starts a worker."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment
    )


def test_hung_worker_is_killed_and_reported() -> None:
    hired = HungWorkers()
    remote = RemoteWorker("cuda:0", hired.start, WorkerTimeouts(start_s=0.2, reply_s=0.1))
    with pytest.raises(DeviceError, match=r"cuda:0 hung: no answer within 0\.3 s; its worker was killed"):
        remote.query(WorkerRequest("describe"))
    assert hired[0].wait_for_exit(0) == -signal.SIGKILL


def test_large_inputs_extend_the_time_limit() -> None:
    """Two inputs of 4 GiB take a busy host minutes; without the time every trial would count as hung."""
    large, small = ekc.matmul(2**15, 2**15, 2**15), ekc.matmul(64, 64, 64)
    timeouts = WorkerTimeouts(reply_s=60.0, transfer_bytes_per_s=50e6)
    kernels = (LibraryKernel("k", None, op.inputs, op.outputs[0]) for op in (large, small))  # type: ignore
    limits = [timeouts.compute_timeout_s(make_request("time", kernel, TimingRules())) for kernel in kernels]
    assert limits == pytest.approx([60.0 + 2**33 / 50e6, 60.0], abs=0.01)
    assert WorkerTimeouts(reply_s=60.0).compute_timeout_s(WorkerRequest("describe")) == 60.0


class Noting:
    """A connection that waits without a limit, and records the limits."""

    def __init__(self, connection: Any, limits: list[float]) -> None:
        self._connection, self._limits = connection, limits

    def poll(self, seconds: float) -> bool:
        self._limits.append(seconds)
        return bool(self._connection.poll(None))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_long_calls_extend_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six samples of 8.5 s and a first measurement are 60 s, more than the time for a reply."""
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path))
    kernel = ekc.compile(make_naive_schedule(ekc.matmul(4, 8, 4))).compiled
    limits: list[float] = []

    def hire() -> Forked:
        hand = Forked(partial(ScriptedDriver, launch_s=8.5))
        hand.connection = Noting(hand.connection, limits)  # type: ignore[assignment]
        return hand

    remote = RemoteWorker("cuda:0", hire, WorkerTimeouts(start_s=7.0, reply_s=60.0, stop_s=20.0))
    samples = remote.query(make_request("time", kernel, TimingRules(max_seconds=0.0)))
    assert samples.samples_s == pytest.approx((8.5,) * 6, rel=0.02)
    caller = RemoteKernelRunner(remote)
    caller.start(kernel)
    caller.stop()
    first, second, begun, stopped = limits
    assert (first, begun) == pytest.approx((67.0, 60.0), abs=0.1)
    assert (second, stopped) == pytest.approx((60.0 + 6 * 8.5, 20.0 + 2 * 8.5), rel=0.02)


def test_worker_that_does_not_start_reports_its_last_line() -> None:
    remote = RemoteWorker("cuda:0", partial(ChildProcess, "ekc.no_such_module"))
    for _ in range(2):
        with pytest.raises(
            DeviceError, match=r"ended with status 1; its last words: .*No module named ekc.no"
        ):
            remote.query(WorkerRequest("describe"))


def test_worker_that_hangs_ends_with_its_parent() -> None:
    parent = start_parent(PARENT)
    worker = int(parent.stdout.readline())
    assert alive(worker)
    parent.kill()
    parent.wait()
    while alive(worker):
        # No limit of ours: a worker that stays would hang this test, which is a failure too.
        time.sleep(0.01)


def test_worker_ends_with_its_remote() -> None:
    hired = HungWorkers()
    remote = RemoteWorker("cuda:0", hired.start)
    remote._processes.append(hired.start())
    del remote
    assert hired[0].wait_for_exit(0) is not None


FORKING = f"""
import os, signal, sys, time
from functools import partial
from ekc.devices.cuda.messages import WorkerRequest
from ekc.processes.child import ChildProcess, WorkerTimeouts, RemoteWorker
remote = RemoteWorker("cuda:0", partial(ChildProcess, "{HUNG}"))
remote.send(WorkerRequest("describe"))
worker = remote._processes[0]._process.pid
child = os.fork()
if not child:
    print(f"{{len(remote._processes)}}\\n", end="", flush=True)
    time.sleep(3600)
print(f"{{child}} {{worker}}\\n", end="", flush=True)
time.sleep(3600)
"""


def test_worker_ends_with_its_parent_though_a_forked_child_lives_on() -> None:
    parent = start_parent(FORKING)
    lines = sorted([parent.stdout.readline(), parent.stdout.readline()], key=len)
    assert lines[0] == "0\n", "the child must hire a worker of its own"
    child, worker = map(int, lines[1].split())
    parent.kill()
    parent.wait()
    began = time.monotonic()
    while alive(worker) and time.monotonic() < began + 30:
        time.sleep(0.01)
    outlived = alive(worker)
    for pid in (child, worker):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert not outlived


def test_worker_that_cannot_be_started_is_one_line() -> None:
    def hire() -> ChildProcess:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            return ChildProcess(HUNG)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    remote = RemoteWorker("cuda:0", hire)
    with pytest.raises(DeviceError, match=r"cuda:0: its worker process cannot be .*Too many open") as problem:
        remote.query(WorkerRequest("describe"))
    assert "\n" not in str(problem.value)


def test_late_reply_after_ctrl_c_is_not_taken_for_another() -> None:
    class Interrupted:
        """A connection during whose wait somebody presses Ctrl-C."""

        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def poll(self, seconds: float) -> bool:
            raise KeyboardInterrupt

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

    class InterruptedWorkers(HungWorkers):
        def start(self) -> ChildProcess:
            worker = super().start()
            worker.connection = Interrupted(worker.connection)
            return worker

    hired = InterruptedWorkers()
    remote = RemoteWorker("cuda:0", hired.start)
    for number in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            remote.query(WorkerRequest("describe"))
        assert len(hired) == number
        assert hired[-1].wait_for_exit(0) is not None
