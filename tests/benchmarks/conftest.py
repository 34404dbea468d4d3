"""Settings of the tests of benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An own compile cache for each test; a benchmark that sets another folder sets it for its test alone."""
    monkeypatch.setenv("EKC_CACHE_DIR", str(tmp_path))
