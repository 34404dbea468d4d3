"""Hostile and damaged ONNX models: each is read or refused in a line, within bytes and seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.hostile_onnx import CASES, READ

ROOT = Path(__file__).parents[2]
MOST_SECONDS, MOST_GROWTH = 40, 3 << 29
"""For each model: seconds on a loaded machine, and bytes (1.5 GiB) of resident memory."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, float, int]]:
    """Every model read by one child."""
    command = [sys.executable, "-m", "tests.models.hostile_onnx", str(tmp_path_factory.mktemp("hostile"))]
    child = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True, timeout=300
    )
    assert child.returncode == 0, child.stderr[-2000:]
    rows = [json.loads(line) for line in child.stdout.splitlines()]
    return {name: (line, seconds, growth) for name, line, seconds, growth in rows}


@pytest.mark.parametrize("name", CASES)
def test_a_hostile_model_is_read_or_refused_in_a_line(
    name: str, outcomes: dict[str, tuple[str, float, int]]
) -> None:
    line, seconds, growth = outcomes[name]
    expected = CASES[name][1]
    assert not line.startswith("crash")
    assert "internal error" not in line
    assert "\n" not in line
    assert len(line) < 1000
    assert expected in line if expected != READ else line == READ
    assert seconds < MOST_SECONDS
    assert growth < MOST_GROWTH
