"""Runs of benchmarks in the process of the tests."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.helpers import Run


@pytest.fixture(autouse=True)
def cache_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """One compile cache for these tests; a benchmark that sets another folder sets it for its test alone."""
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cuda-cache"))


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the `main` of a benchmark: the printed text, and the JSON. Status 1 is a missed bar."""

    def run_main(module: str, *options: str) -> tuple[str, dict[str, Any]]:
        file = tmp_path / "figures.json"
        status = importlib.import_module(f"benchmarks.{module}").main(["--json", str(file), *options])
        figures = json.loads(file.read_text())
        assert status == int(figures["pass"] is False)
        return capsys.readouterr().out, figures

    return run_main
