"""Fixtures that the tests of the search share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A compile cache for each test file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EKC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
