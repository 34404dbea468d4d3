"""Names that tests of benchmarks share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.items import Item
from ekc.ir.comparison.compare import make_random_input_arrays
from ekc.ir.comparison.tolerance import ReferenceEvaluator

ROOT = Path(__file__).parents[2]
"""Folder of the repository."""

Run = Callable[..., tuple[str, dict[str, Any]]]
"""Runs the `main` of a benchmark in this process: the printed text, and the JSON."""


def expect(item: Item) -> ReferenceEvaluator:
    """The reference of an item of the kit, for random inputs."""
    return ReferenceEvaluator(item.op, make_random_input_arrays(item.op))
