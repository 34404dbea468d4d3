"""Fixtures of all tests."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.browser import PageOpener, launch_chromium
from tests.shared_traces import shared_traces

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["shared_traces"]

# No test may fail for being slow, the machine may be busy with others; and the same code gets the same
# verdict. `pytest --hypothesis-profile=fresh` draws other examples, `many` other and more.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None)
settings.register_profile("many", deadline=None, max_examples=2000)
settings.load_profile("same")

Golden = Callable[[Path, str], None]
"""Holds text against a golden file."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files instead of comparing with them"
    )


def pytest_collection() -> None:
    """Collecting tests makes half a million objects that all stay: no garbage to look for."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage among the objects that tests make, and not among those before them."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(path, text)`: the text must equal the file; `--update-golden` writes the file instead."""

    def check(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.write_text(text + "\n")
        assert text + "\n" == path.read_text(), f"differs from {path}; --update-golden accepts the new text"

    return check


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The browser of this test process."""
    with launch_chromium() as browser:
        yield browser


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[PageOpener]:
    """`open_page(width=, dark=)`: a page that fails the test for an error or a request to another host."""
    opener = PageOpener(chromium)
    yield opener
    opener.close()
    assert not opener.problems
