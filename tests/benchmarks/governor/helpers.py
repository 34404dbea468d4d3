"""Runs a benchmark of the governor as a user does, in a small form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


def run_benchmark(name: str, tmp_path: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """Output and JSON of `python -m benchmarks.governor.NAME`; its status must follow from the verdict."""
    file = tmp_path / "figures.json"
    process = subprocess.run(
        [sys.executable, "-m", f"benchmarks.governor.{name}", "--json", str(file), *options],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env=os.environ | {"EKC_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert file.exists(), process.stderr
    figures: dict[str, Any] = json.loads(file.read_text())
    is_failure = name in ("kills", "cost") and not figures["pass"]
    assert process.returncode == int(is_failure), process.stderr
    return process.stdout, figures
