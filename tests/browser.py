"""Headless Chromium for tests: one browser for a test process, one page for a test.

A request to any host but 127.0.0.1, a message of the console of level "error", and an exception in the page
fail the test. Without Chromium or playwright the tests are skipped, and say so.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

LOCAL_SCHEMES = {"file", "data", "blob", "about"}


def find_chromium() -> str:
    """Path of Debian's Chromium; skips the test where it or playwright is missing."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs Chromium: apt-get install --no-install-recommends chromium")
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("needs playwright: pip install playwright")
    return path


@contextmanager
def launch_chromium() -> Iterator[Browser]:
    """Start the browser, headless."""
    path = find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class PageOpener:
    """Opens pages in a browser and collects what must not happen in them."""

    def __init__(self, browser: Browser) -> None:
        self.problems: list[str] = []
        self._browser = browser

    def __call__(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> Page:
        """A blank page of that size in pixels, with the light or the dark color scheme."""
        context = self._browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        context.route("**/*", self._route)
        page = context.new_page()
        page.on("console", lambda m: m.type == "error" and self.problems.append(f"console: {m.text}"))
        page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        page.on("websocket", lambda socket: self._check(socket.url))
        return page

    def close(self) -> None:
        """Close all pages."""
        for context in self._browser.contexts:
            context.close()

    def _check(self, url: str) -> bool:
        parts = urlsplit(url)
        is_local = parts.scheme in LOCAL_SCHEMES or parts.hostname == "127.0.0.1"
        if not is_local:
            self.problems.append(f"request to another host: {url}")
        return is_local

    def _route(self, route: Route) -> None:
        if self._check(route.request.url):
            route.continue_()
        else:
            route.abort()
