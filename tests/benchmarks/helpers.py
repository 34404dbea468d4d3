"""Helpers that run a benchmark: in this process, or as a process of its own."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
"""Folder of the repository."""


def run(module: str, tmp_path: Path, *options: str, **environment: str) -> tuple[str, dict[str, Any]]:
    """Run `python -m benchmarks.<module>`: the printed text, and the JSON. Status 1 is a missed bar."""
    file = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", "--json", str(file), *options],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"EKC_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)} | environment,
    )
    assert done.returncode in (0, 1), done.stderr
    assert file.exists(), done.stderr
    return done.stdout, json.loads(file.read_text())


def run_inline(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[str, dict[str, Any]]:
    """Run the `main` of a benchmark in this process: the printed text, and the JSON."""
    file = tmp_path / "figures.json"
    status = importlib.import_module(f"benchmarks.{module}").main(["--json", str(file), *options])
    figures = json.loads(file.read_text())
    assert status == int(figures["pass"] is False)
    return capsys.readouterr().out, figures
