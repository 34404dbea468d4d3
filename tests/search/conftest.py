"""Fixtures that the tests of the search share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import ekc
from ekc.search.tuning_result import TuningResult
from tests.search.helpers import tune

SharedRun = tuple[TuningResult, Path]
"""A run and its record file, which no test may change."""


@pytest.fixture(autouse=True, scope="session")
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A compile cache for these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EKC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def matvec_run(tmp_path_factory: pytest.TempPathFactory) -> SharedRun:
    """`tune()` with its defaults."""
    file = tmp_path_factory.mktemp("matvec") / "r.db"
    return tune(records=file), file


@pytest.fixture(scope="session")
def matmul_run(tmp_path_factory: pytest.TempPathFactory) -> SharedRun:
    file = tmp_path_factory.mktemp("matmul") / "r.db"
    return tune(ekc.matmul(64, 64, 64), records=file), file


@pytest.fixture(scope="session")
def plain_run(matvec_run: SharedRun) -> TuningResult:
    return matvec_run[0]


@pytest.fixture
def matvec_records(matvec_run: SharedRun, tmp_path: Path) -> Path:
    """A copy of the record file of `plain_run`."""
    return Path(shutil.copy(matvec_run[1], tmp_path / "r.db"))
