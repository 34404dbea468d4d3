"""Running a benchmark as a person does, in a tiny form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "benchmarks"


def run(script: str, tmp_path: Path, *options: str, **environment: str) -> tuple[str, dict[str, Any]]:
    """What a benchmark printed, and its JSON."""
    file = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), "--json", str(file), *options],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"EKC_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(FOLDER.parent)} | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text())
