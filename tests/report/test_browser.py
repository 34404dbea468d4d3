"""The browser of the tests: a page opens, and what must not happen is noticed."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Browser

from tests.browser import PageOpener


def test_page_opens_and_problems_are_noticed(chromium: Browser, tmp_path: Path) -> None:
    text = '<p id="x"></p><script>x.textContent = 6 * 7; console.error("wrong"); fetch("http://10.0.0.1/")</script>'
    (tmp_path / "a.html").write_text(text)
    opener = PageOpener(chromium)
    page = opener(width=800)
    page.goto((tmp_path / "a.html").as_uri())
    page.wait_for_timeout(300)
    assert page.locator("#x").inner_text() == "42"
    opener.close()
    assert any("wrong" in problem for problem in opener.problems)
    assert any("10.0.0.1" in problem for problem in opener.problems)
