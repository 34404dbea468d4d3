"""Boards for the scripted NVML of `process/pynvml.py`, and processes that see them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

MODULE_FOLDER = Path(__file__).parent / "process"
ROOT = Path(__file__).parents[3]
GEARS = list(range(300, 1996, 15))
LIMITS_BEFORE = (None, None, 280_000)
"""First limits of a board: no locks, and a power cap in milliwatts."""


class ScriptedBoards:
    """Some GPUs in a file, and a folder for leases, both below one folder."""

    def __init__(self, folder: Path, number: int = 1) -> None:
        self.folder = folder
        self.file = folder / "boards.json"
        self.leases = folder / "leases"
        self.extra: dict[str, str] = {}
        """Additional variables of the environment."""
        gpus = [_make_gpu(index) for index in range(number)]
        self.file.write_text(json.dumps({"gpus": gpus, "fail": {}, "lost": False}))
        for index in range(number):
            # A cap below the default, as an administrator sets it.
            self.set_state(
                index, sm_lock=None, memory_lock=None, limit_mw=LIMITS_BEFORE[2], energy=[1e6, time.time()]
            )

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a process that sees these boards instead of real ones."""
        path = os.pathsep.join([str(MODULE_FOLDER), str(ROOT)])
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ZEUSD_", "CUDA_"))}
        return kept | {
            "PYTHONPATH": path,
            "EKC_SCRIPTED_GPU": str(self.file),
            "EKC_RUN_DIR": str(self.leases),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            **self.extra,
        }

    def start_python(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """A Python process that sees the boards, by default with its output in pipes."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        return subprocess.Popen(
            [sys.executable, *words], env=self.environment, text=True, cwd=self.folder, **options
        )

    def get_uuid(self, index: int = 0) -> str:
        """UUID of one board."""
        return str(json.loads(self.file.read_text())["gpus"][index]["uuid"])

    def read_limits(self, index: int = 0) -> tuple[Any, Any, int]:
        """SM lock, memory lock and power cap [mW] in force."""
        names = ("sm_lock", "memory_lock", "limit_mw")
        sm, memory, cap = (json.loads((self.folder / f"{index}.{name}").read_text()) for name in names)
        return sm, memory, cap

    def has_lease(self) -> bool:
        """Whether a lease is left."""
        return any(self.leases.glob("*.json"))

    def are_limits_back(self) -> bool:
        """Whether all boards have their first limits."""
        numbers = range(len(json.loads(self.file.read_text())["gpus"]))
        return all(self.read_limits(number) == LIMITS_BEFORE for number in numbers)

    def is_restored(self) -> bool:
        """Whether all boards have their first limits and no lease is left."""
        return self.are_limits_back() and not self.has_lease()

    def read_calls(self) -> list[list[Any]]:
        """Every set call so far: when, by which process, its name, GPU and value."""
        file = self.folder / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def set_state(self, index: int, **limits: Any) -> None:
        """Set limits as an administrator would, without NVML."""
        for name, value in limits.items():
            fresh = self.folder / f"{index}.{name}.{threading.get_ident()}.put"
            fresh.write_text(json.dumps(value))
            fresh.replace(self.folder / f"{index}.{name}")

    def update_script(self, **changes: Any) -> None:
        """Change the script: `fail` (NVML error codes by function), `lost`, `gpus`."""
        self._write_boards(json.loads(self.file.read_text()) | changes)

    def update_board(self, index: int, **changes: Any) -> None:
        """Change the script of one board."""
        found = json.loads(self.file.read_text())
        found["gpus"][index].update(changes)
        self._write_boards(found)

    def _write_boards(self, boards: dict[str, Any]) -> None:
        fresh = self.file.with_suffix(".fresh")
        fresh.write_text(json.dumps(boards))
        fresh.replace(self.file)

    def wait_for(self, condition: Any, seconds: float) -> float:
        """Seconds until `condition(self)` is true; infinity where that takes longer than `seconds`."""
        began = time.monotonic()
        while not condition(self):
            if time.monotonic() - began > seconds:
                return float("inf")
            time.sleep(0.02)
        return time.monotonic() - began


def _make_gpu(index: int) -> dict[str, Any]:
    return {
        "uuid": f"GPU-{uuid.uuid4()}",
        "name": "Scripted GPU",
        "bus": f"0000:{index + 1:02x}:00.0",
        "arch": 8,
        "memory": [405, 5001, 9251],
        "graphics": GEARS,
        "limits_mw": [100_000, 350_000],
        "default_mw": 350_000,
        "pids": [],
    }
