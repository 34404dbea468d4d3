"""Fixtures that the tests of the search share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import ekc
from ekc.search.tuning_result import TuningResult
from tests.search.helpers import MV, tune

SharedRun = tuple[TuningResult, Path]
"""A run and its record file, which no test may change."""


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True, scope="module")
def compile_cache(cache_folder: Path) -> Iterator[None]:
    """One compile cache for all these tests, and for no others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EKC_CACHE_DIR", str(cache_folder))
        yield


def share_run(op: ekc.Operator, cache_folder: Path, file: Path) -> SharedRun:
    """A run with the defaults of `tune`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EKC_CACHE_DIR", str(cache_folder))
        return tune(op, records=file), file


@pytest.fixture(scope="session")
def matvec_run(cache_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> SharedRun:
    return share_run(MV, cache_folder, tmp_path_factory.mktemp("matvec") / "r.db")


@pytest.fixture(scope="session")
def matmul_run(cache_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> SharedRun:
    return share_run(ekc.matmul(64, 64, 64), cache_folder, tmp_path_factory.mktemp("matmul") / "r.db")


@pytest.fixture(scope="session")
def plain_run(matvec_run: SharedRun) -> TuningResult:
    return matvec_run[0]


@pytest.fixture
def matvec_records(matvec_run: SharedRun, tmp_path: Path) -> Path:
    """A copy of the record file of `plain_run`."""
    return Path(shutil.copy(matvec_run[1], tmp_path / "r.db"))
