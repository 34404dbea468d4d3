"""Scripted boards in a folder that other users may read, and a daemon over them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.devices.clocks.daemon.helpers import ALICE, GPU_GROUP, RunningDaemon
from tests.scripted.nvml.boards import ScriptedBoards
from tests.scripted.nvml.fixtures import here

__all__ = ["here"]

ALLOW = f"""
[[allow]]
users = [{ALICE}, {os.geteuid()}]
groups = [{GPU_GROUP}]
lowest = {{sm_mhz = 600}}
"""


@pytest.fixture
def boards() -> Iterator[ScriptedBoards]:
    """Two scripted GPUs; the folders of pytest are closed to other users."""
    folder = Path(tempfile.mkdtemp(prefix="ekc-daemon-"))
    folder.chmod(0o755)
    yield ScriptedBoards(folder, number=2)
    shutil.rmtree(folder)


@pytest.fixture
def daemon(boards: ScriptedBoards) -> Iterator[RunningDaemon]:
    running = RunningDaemon(boards, ALLOW)
    yield running
    running.close()
