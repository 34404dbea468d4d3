"""Running a benchmark as a person does, in a tiny form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run(module: str, tmp_path: Path, *options: str, **environment: str) -> tuple[str, dict[str, Any]]:
    """The text that `python -m benchmarks.<module>` prints, and its JSON."""
    file = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", "--json", str(file), *options],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"EKC_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)} | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text())
