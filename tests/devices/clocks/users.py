"""Processes of other users, over boards that every user may set. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scripted.nvml.boards import ScriptedBoards

ALICE, BOB = 2_000_000_001, 2_000_000_002
"""Ids that no user has."""


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedBoards]:
    """One GPU in a folder that all users may write to; leases of alice in a folder of hers."""
    folder = Path("/tmp") / f"ekc-test-{os.getpid()}-{tmp_path_factory.mktemp('users').name}"
    folder.mkdir()
    folder.chmod(0o777)
    boards = ScriptedBoards(folder)
    (folder / "calls").touch()
    (folder / "calls").chmod(0o666)
    (folder / "alice").mkdir(mode=0o755)
    os.chown(folder / "alice", ALICE, ALICE)
    yield boards
    shutil.rmtree(folder)


def start_as(boards: ScriptedBoards, uid: int, *words: str, **extra: str) -> subprocess.Popen[str]:
    """A Python process of a user with variables of the environment."""
    command = [sys.executable, *words]
    options: dict[str, Any] = {"user": uid, "group": uid, "extra_groups": []}
    if not _can_others_run(Path(sys.executable).resolve()):
        # The interpreter is in a folder of root: the right to read it is all that the process gets.
        right = "+dac_read_search"
        switch = ["--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
        command = ["setpriv", *switch, "--inh-caps", right, "--ambient-caps", right, *command]
        options = {}
    environment = {k: v for k, v in (boards.environment | extra).items() if v}
    return subprocess.Popen(
        command,
        env=environment,
        text=True,
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def _can_others_run(program: Path) -> bool:
    return all(one.stat().st_mode & 0o001 for one in (program, *program.parents))
