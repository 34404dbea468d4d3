"""Real worker processes: what becomes of those that hang, die, or lose their parent."""

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
from ekc.devices.cuda.caller import RemoteCaller
from ekc.devices.cuda.messages import Describe, Rules, Time, Work
from ekc.devices.cuda.remote import Child, Patience, Remote
from ekc.errors import DeviceError
from ekc.search.space.naive import naive
from tests.devices.cuda.hands import Forked
from tests.devices.cuda.scripted_driver import ScriptedDriver

HUNG = "tests.devices.cuda.hung_worker"
PARENT = f"""
import time
from ekc.devices.cuda.remote import Child
child = Child(0, "{HUNG}")
print(child._process.pid, flush=True)
time.sleep(3600)
"""


def alive(pid: int) -> bool:
    """Whether a process runs: not gone, and not a zombie that nobody here can bury."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_one_that_hangs_is_killed_and_the_line_says_so() -> None:
    hired: list[Child] = []

    def hire() -> Child:
        hired.append(Child(0, HUNG))
        return hired[-1]

    remote = Remote("cuda:0", hire, Patience(start=0.2, answer=0.1))
    with pytest.raises(DeviceError, match=r"cuda:0 hung: no answer within 0\.3 s; its worker was killed"):
        remote.ask(Describe())
    assert hired[0].ended(0) == -signal.SIGKILL


def test_large_inputs_are_given_the_time_to_be_filled() -> None:
    """Two inputs of 4 GiB take a busy host minutes; else every trial would count as hung."""
    large, small = ekc.matmul(2**15, 2**15, 2**15), ekc.matmul(64, 64, 64)
    asked = [Time(Work("k", b"", (), op.inputs), Rules()) for op in (large, small)]
    limits = [Patience(answer=60.0, filled_bytes_per_s=50e6).of(request) for request in asked]
    assert limits == pytest.approx([60.0 + 2**33 / 50e6, 60.0], abs=0.01)
    assert Patience(answer=60.0).of(Describe()) == 60.0


class Noting:
    """A connection that waits as long as it must, and notes how long it was to wait."""

    def __init__(self, connection: Any, limits: list[float]) -> None:
        self._connection, self._limits = connection, limits

    def poll(self, seconds: float) -> bool:
        self._limits.append(seconds)
        return bool(self._connection.poll(None))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_calls_of_many_seconds_are_given_the_time_and_do_not_count_as_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six samples of 8.5 s and a first look are 60 s; nobody hangs there."""
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path))
    kernel = ekc.compile(naive(ekc.matmul(4, 8, 4))).compiled
    limits: list[float] = []

    def hire() -> Forked:
        hand = Forked(partial(ScriptedDriver, launch_s=8.5))
        hand.connection = Noting(hand.connection, limits)  # type: ignore[assignment]
        return hand

    remote = Remote("cuda:0", hire, Patience(start=7.0, answer=60.0, stop=20.0))
    samples = remote.ask(Time(Work.of(kernel), Rules(seconds=0.0)))
    assert samples.seconds == pytest.approx((8.5,) * 6, rel=0.02)
    caller = RemoteCaller(remote)
    caller.start(kernel)
    caller.stop()
    first, second, begun, stopped = limits
    assert (first, begun) == pytest.approx((67.0, 60.0), abs=0.1)
    assert (second, stopped) == pytest.approx((60.0 + 6 * 8.5, 20.0 + 2 * 8.5), rel=0.02)


def test_one_that_never_starts_says_its_last_words() -> None:
    remote = Remote("cuda:0", partial(Child, 0, "ekc.no_such_module"))
    for _ in range(2):
        with pytest.raises(
            DeviceError, match=r"ended with status 1; its last words: .*No module named ekc.no"
        ):
            remote.ask(Describe())


def test_a_worker_that_hangs_ends_with_its_parent() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert alive(worker)
    parent.kill()
    parent.wait()
    while alive(worker):
        # No limit of ours: a worker that stays would hang this test, which is a failure too.
        time.sleep(0.01)


def test_a_worker_ends_when_nobody_holds_its_remote() -> None:
    hired: list[Child] = []

    def hire() -> Child:
        hired.append(Child(0))
        return hired[-1]

    remote = Remote("cuda:0", hire)
    remote._hands.append(hire())
    del remote
    assert hired[0].ended(0) is not None


FORKING = f"""
import os, signal, sys, time
from functools import partial
from ekc.devices.cuda.messages import Describe
from ekc.devices.cuda.remote import Child, Patience, Remote
remote = Remote("cuda:0", partial(Child, 0, "{HUNG}"))
remote.post(Describe())
worker = remote._hands[0]._process.pid
child = os.fork()
if not child:
    print(f"{{len(remote._hands)}}\\n", end="", flush=True)
    time.sleep(3600)
print(f"{{child}} {{worker}}\\n", end="", flush=True)
time.sleep(3600)
"""


def test_a_worker_ends_with_its_parent_though_a_child_that_was_forked_lives_on() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKING], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
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


def test_a_worker_that_cannot_be_started_is_one_line() -> None:
    def hire() -> Child:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            return Child(0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    remote = Remote("cuda:0", hire)
    with pytest.raises(DeviceError, match=r"cuda:0: its worker process cannot be .*Too many open") as told:
        remote.ask(Describe())
    assert "\n" not in str(told.value)


def test_after_ctrl_c_no_late_answer_is_taken_for_another() -> None:
    class Interrupted:
        """A connection during whose wait somebody presses Ctrl-C."""

        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def poll(self, seconds: float) -> bool:
            raise KeyboardInterrupt

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

    hired: list[Child] = []

    def hire() -> Child:
        hired.append(Child(0, HUNG))
        hired[-1].connection = Interrupted(hired[-1].connection)  # type: ignore[assignment]
        return hired[-1]

    remote = Remote("cuda:0", hire)
    for number in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            remote.ask(Describe())
        assert len(hired) == number
        assert hired[-1].ended(0) is not None
