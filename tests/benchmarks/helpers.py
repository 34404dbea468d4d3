"""Names that tests of benchmarks share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
"""Folder of the repository."""

Run = Callable[..., tuple[str, dict[str, Any]]]
"""Runs the `main` of a benchmark in this process: the printed text, and the JSON."""
