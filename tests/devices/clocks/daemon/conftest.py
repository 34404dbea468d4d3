"""Scripted boards in a folder that other users may read, and a daemon over them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.devices.clocks.daemon.helpers import ALICE, CAROL, GPU_GROUP, RunningDaemon
from tests.devices.clocks.daemon.user_process import UserProcess
from tests.scripted.nvml.boards import ScriptedBoards

ALLOW = f"""
[[allow]]
users = [{ALICE}, {os.geteuid()}]
lowest = {{sm_mhz = 600, power_w = 150}}

[[allow]]
groups = [{GPU_GROUP}]
gpus = [1]

[[allow]]
users = [{CAROL}]
gpus = "jobs"
"""


@contextmanager
def open_boards(number: int = 2) -> Iterator[ScriptedBoards]:
    """Scripted GPUs; the folders of pytest are closed to other users."""
    folder = Path(tempfile.mkdtemp(prefix="ekc-daemon-"))
    folder.chmod(0o755)
    try:
        yield ScriptedBoards(folder, number)
    finally:
        shutil.rmtree(folder)


@contextmanager
def open_daemon(boards: ScriptedBoards) -> Iterator[RunningDaemon]:
    """A daemon with the allow-list `ALLOW`."""
    running = RunningDaemon(boards, ALLOW)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def boards() -> Iterator[ScriptedBoards]:
    with open_boards() as boards:
        yield boards


@pytest.fixture(scope="session")
def shared_daemon() -> Iterator[RunningDaemon]:
    """One daemon for all tests; a test that ends it starts it again."""
    with open_boards() as boards, open_daemon(boards) as running:
        yield running


@pytest.fixture
def enter(shared_daemon: RunningDaemon) -> Iterator[Callable[..., UserProcess]]:
    """Starts processes of users, with a connection each: `enter(uid, groups)`. Needs root."""
    if os.geteuid() != 0:
        pytest.skip("processes of other users need root")
    processes: list[UserProcess] = []

    def start(uid: int, groups: tuple[int, ...] = ()) -> UserProcess:
        processes.append(UserProcess(shared_daemon, uid, groups))
        return processes[-1]

    yield start
    for process in processes:
        process.close()
    assert shared_daemon.boards.wait_for(ScriptedBoards.is_restored, 5.0) < 5.0
    assert shared_daemon.process.poll() is None
