"""Fixtures with scripted boards, which a conftest imports."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.scripted.nvml.boards import MODULE_FOLDER, ScriptedBoards


@pytest.fixture
def boards(tmp_path: Path) -> ScriptedBoards:
    """Two scripted GPUs, seen by the processes that it starts."""
    return ScriptedBoards(tmp_path, number=2)


@pytest.fixture
def here(boards: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> ScriptedBoards:
    """The same boards, seen by this process as well."""
    see_boards(boards, monkeypatch)
    return boards


def see_boards(boards: ScriptedBoards, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process see scripted boards."""
    for name in ("EKC_SCRIPTED_GPU", "EKC_RUN_DIR", "PYTHONPATH"):
        monkeypatch.setenv(name, boards.environment[name])
    for name in ("ZEUSD_SOCK_PATH", "ZEUSD_HOST_PORT", "ZEUSD_TOKEN", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("pynvml", MODULE_FOLDER / "pynvml.py")
    scripted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scripted)
    monkeypatch.setitem(sys.modules, "pynvml", scripted)


@pytest.fixture
def one(tmp_path: Path) -> ScriptedBoards:
    """One GPU, which every job uses."""
    return ScriptedBoards(tmp_path)
